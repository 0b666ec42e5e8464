// Package e2e holds the tests that run the built binary with real Python
// workers, as a user would: whole runs, kills and resumes, deaths inside,
// signals, and a world that does not cooperate. It has nothing but tests.
package e2e
