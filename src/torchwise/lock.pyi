from torchwise.study.lock import *
