package up

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// The health of devices before a worker starts: nothing has watched GPUs yet.
const (
	healthAtStart = string(admin.Unknown)
	healthOfCPU   = string(admin.Healthy)
)

// place asks the plugin where workers run, if it says so, before any of them
// starts. What is late, bad or missing leaves them where the built-in put them,
// and the run is degraded.
func (u *up) place(ctx context.Context) {
	if u.plugin == nil || !u.plugin.Can(scheduler.Place) {
		u.decided(decidedPlace, decidedBuiltin, u.placedAs())
		return
	}
	name, by := u.plugin.State().Name, decidedBuiltin
	if err := u.askPlace(ctx); err != nil {
		u.warn(schedulerSubject, fmt.Sprintf("plugin %s does not place: %v; workers are where the built-in puts them", name, err))
	} else {
		by = name
	}
	u.decided(decidedPlace, by, u.placedAs())
	u.note("placement", u.placedAs())
}

// askPlace asks, and moves the plan to the answer. A placement that the plan
// cannot be made for is a bad answer too.
func (u *up) askPlace(ctx context.Context) error {
	q := u.placeRequest()
	answer, err := u.plugin.Place(ctx, q)
	if err != nil {
		if errors.Is(err, host.ErrAbsent) {
			return errors.New("it ended before it was asked")
		}
		return err
	}
	at := map[runner.Worker]string{}
	for _, p := range answer {
		at[p.Worker] = p.Device
	}
	moved, err := u.plan.Moved(u.config, u.has, at)
	if err != nil {
		return err
	}
	u.plan = moved
	return nil
}

// placeRequest is what the plugin is asked with: the devices that may be used,
// and what the plan reckons that each worker takes.
func (u *up) placeRequest() scheduler.PlaceRequest {
	if u.config.Workers.Device == placement.CPU {
		q := scheduler.PlaceRequest{Colocate: true}
		total := uint64(0)
		for _, w := range u.plan.Workers {
			need := scheduler.Need{Worker: w.Name, MemoryBytes: w.MemoryBytes + w.HostBytes}
			q.Needs = append(q.Needs, need)
			total += need.MemoryBytes
		}
		// The plan fits the host, or its memory is not known.
		memory := max(u.has.Available, total)
		q.Devices = []scheduler.Device{{ID: placement.CPU, Name: processor(), MemoryBytes: memory, FreeBytes: memory, Health: healthOfCPU}}
		return q
	}
	q := scheduler.PlaceRequest{Devices: u.devices(), Colocate: u.config.Workers.Colocate != "false"}
	for _, w := range u.plan.Workers {
		q.Needs = append(q.Needs, scheduler.Need{Worker: w.Name, MemoryBytes: w.MemoryBytes})
	}
	return q
}

// devices gives the GPUs that workers may run on, with what is known of them.
func (u *up) devices() []scheduler.Device {
	var all []scheduler.Device
	for _, g := range u.has.GPUs {
		if g.Busy != "" {
			continue
		}
		d := scheduler.Device{ID: g.UUID, Name: g.Name, MemoryBytes: g.Bytes, FreeBytes: g.Bytes, Health: healthAtStart}
		for _, x := range u.gpus {
			if x.UUID == g.UUID {
				d.MemoryBytes = x.MemoryBytes
			}
		}
		for _, o := range u.has.GPUs {
			if o.UUID != g.UUID && o.Busy == "" {
				d.Links = append(d.Links, scheduler.Link{ID: o.UUID, Peer: u.peers(g.UUID, o.UUID)})
			}
		}
		all = append(all, d)
	}
	return all
}

// peers reports whether two GPUs read one another's memory.
func (u *up) peers(a, b string) bool {
	no := u.has.Links.NoPeer
	return !slices.Contains(no, [2]string{a, b}) && !slices.Contains(no, [2]string{b, a})
}

// placement names each worker's device as the manifest does.
func (u *up) placement() map[string]string {
	at := map[string]string{}
	for _, w := range u.plan.Workers {
		at[w.Name.String()] = w.Device
	}
	return at
}

// placedAs says in words where workers run.
func (u *up) placedAs() (said string) {
	for i, w := range u.plan.Workers {
		if i > 0 {
			said += ", "
		}
		said += fmt.Sprintf("%s on %s", w.Name, u.plan.Where(w.Device))
	}
	return said
}
