// Package drivetest has what tests of the loop stand it on: a small model of a
// worker that keeps proto/lane.md over real memory, processes that are
// goroutines, and the memory and store that a run has.
package drivetest
