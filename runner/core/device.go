package core

import (
	"fmt"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/life"
)

// device is one, and how many turns it has.
type device struct {
	name  string
	turns int
}

// deviceOf gives where a device stands among the core's; every one that a worker
// or a spare names does (check).
func (c *Core) deviceOf(name string) int {
	return slices.IndexFunc(c.devices, func(d device) bool { return d.name == name })
}

// barred is a device that no life is started on any more, and why.
type barred struct{ device, reason string }

// deviceUnfit bars a device. Who runs there goes on: its work is good as long
// as it is done. Who waits to start there again has failed.
func (c *Core) deviceUnfit(in DeviceUnfit) {
	if c.barredFor(in.Device) != "" {
		return
	}
	c.barred = append(c.barred[:len(c.barred):len(c.barred)], barred{in.Device, in.Reason})
	c.emit(runner.Event{Level: runner.Alarm, Name: "device barred", Message: c.barredFor(in.Device)})
	for i := range c.workers {
		c.hold(&c.workers[i])
	}
}

// barredFor says why a device is barred; empty where it is not.
func (c *Core) barredFor(device string) string {
	for _, b := range c.barred {
		if b.device == device {
			return fmt.Sprintf("%s is not used again: %s", b.device, b.reason)
		}
	}
	return ""
}

// hold keeps a worker from being started on a barred device. As long as its
// backoff lasts, a verdict may still find it another one.
func (c *Core) hold(w *worker) {
	why := c.barredFor(w.device)
	if why == "" || w.life.State != life.Backoff || c.movable(w) {
		return
	}
	if c.move(w, life.Bar) {
		c.gaveUp(w, fmt.Sprintf("%v cannot be started again: %s", w.id, why))
	}
}
