// Package flock holds what several runs of a machine share: a lock file beside
// a thing, shared by those that use it and exclusive to the one that makes or
// removes it. The kernel drops a hold with its process, however that ends.
package flock
