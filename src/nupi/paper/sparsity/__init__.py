"""The sparsity experiment: a ResNet-18 on CIFAR-10 whose density is constrained, as a whole or layer by layer."""
