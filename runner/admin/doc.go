// Package admin is how a run is seen and steered from outside: the types of
// status, health and summary that others build on, their files in the run's
// directory, the HTTP server on the run's unix socket, and its client. It
// decides nothing about training.
package admin
