from torchwise.runtime.training import *
