"""Products of numbers of few bits."""

from __future__ import annotations

from torchwise._torch.private_name import PrivateName

INT8_PRODUCT = PrivateName("torch", "_int_mm")
"""`(int8, int8)`: their product as int32. On CUDA it takes more than 16 rows, and sizes that are multiples of 8."""
INT8_WEIGHTS_PRODUCT = PrivateName("torch", "_weight_int8pack_mm")
"""`(bfloat16, int8 weight, bfloat16 scales)`: the product with the scaled weight, in bfloat16."""
INT4_PACK = PrivateName("torch", "_convert_weight_to_int4pack_for_cpu")
"""`(int32 weight, tiles)`: numbers from 0 to 15, packed as the CPU's product wants them."""
INT4_PRODUCT = PrivateName("torch", "_weight_int4pack_mm_for_cpu")
"""`(bfloat16, packed weight, group, bfloat16 scales and zeros)`: the product with the scaled weight."""
INT4_PACK_CUDA = PrivateName("torch", "_convert_weight_to_int4pack")
"""`(uint8 weight with two numbers in each, tiles)`: the same for CUDA."""
INT4_PRODUCT_CUDA = PrivateName("torch", "_weight_int4pack_mm")
FLOAT8_PRODUCT = PrivateName("torch", "_scaled_mm")
"""`(float8, float8, scales of the rows, scales of the columns)`: their product in a wider dtype, on CUDA.

Each of the two may have one scale instead, as a matrix with one number.
"""
