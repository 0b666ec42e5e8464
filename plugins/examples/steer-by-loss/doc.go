// Package steerbyloss holds a scheduling plugin in Python, and its test.
package steerbyloss
