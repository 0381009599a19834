"""Family `arr_coc`: a vision model that spends its tokens where an image is relevant. One file per stage.

Three scorers rate the relevance of each patch of an image. Their tension is balanced, and a total of tokens is
allocated to the patches. "Patch" is a square of the image, "width" the number of its features.
"""

from torchwise_models.zoo.arr_coc.detail import allocate, build_detail
from torchwise_models.zoo.arr_coc.model import build_model
from torchwise_models.zoo.arr_coc.scorers import (
    build_information_scorer,
    build_query_scorer,
    build_salience_scorer,
    build_scorers,
)
from torchwise_models.zoo.arr_coc.tension import build_tension

__all__ = [
    "allocate",
    "build_detail",
    "build_information_scorer",
    "build_model",
    "build_query_scorer",
    "build_salience_scorer",
    "build_scorers",
    "build_tension",
]
