// Package image holds a drafter's whole state: a memfd laid out as a
// safetensors file while it is in memory, and a checkpoint directory once it is
// published. It is the one way to move state. The supervisor never maps an
// image: it makes the descriptor, digests what a worker wrote, and copies it to
// the disk.
package image
