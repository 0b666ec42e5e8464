// Curriculum is a scheduling plugin: an epoch from short samples to long
// ones, and then epochs whose rows are filled.
package main

import "github.com/dflash-runner/dflash-runner/plugins/scheduler"

func main() { scheduler.Serve(&curriculum{}) }
