// Package kernels keeps the cache of compiled kernels: a directory on a disk of
// this machine, named by everything that compiled code depends on, so that the
// workers of a node find what the first of them compiled, and other versions,
// GPUs and shapes find nothing. Whether what is in it is any good, workers
// decide: one that is not ends in a cold warm-up that its certificate names.
package kernels
