// Package drive is the one loop: it feeds the core one input at a time and
// carries out what the core answers. It decides nothing. Goroutines at the
// edges (a lane's reader, a process's waiter, a timer, a disk writer) only post
// to its inbox.
package drive
