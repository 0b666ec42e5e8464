// Package probe watches GPUs through a child process, which may hang where the
// driver does: a child that is late is killed and started again after a wait,
// and until it gives a sample the GPUs are unknown, never healthy.
package probe
