from torchwise.runtime.components import *
