// Package pyenv makes and checks the Python environment that workers and jobs
// run in, and lays out the embedded Python package.
//
// An environment is a venv in the user's cache directory, named after the lock
// of its packages. It is built in place (scripts in a venv hold its path) and
// becomes valid with a stamp that is written last, atomically; whatever has no
// valid stamp, or no longer agrees with it, is made anew. Runs that use an
// environment hold a shared lock on it and the one that makes it an exclusive
// lock, both dropped by the kernel when a process dies.
package pyenv
