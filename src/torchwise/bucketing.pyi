from torchwise.runtime.bucketing import *
