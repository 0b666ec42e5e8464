package up

import (
	"context"

	"github.com/dflash-runner/dflash-runner/cmd/internal/plan"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/doctor"
	"github.com/dflash-runner/dflash-runner/runner/placement"
	"github.com/dflash-runner/dflash-runner/runner/simulate"
)

// The health of devices before a worker starts: nothing has watched GPUs yet.
const (
	healthAtStart = string(admin.Unknown)
	healthOfCPU   = string(admin.Healthy)
)

// Placing is what a plugin is asked to place by: a plan, made or for a run.
type Placing struct {
	Config  *config.Config
	Plan    plan.Plan
	Machine plan.Machine
	GPUs    []doctor.GPU   // with all their memory; empty: the machine's is all
	Costs   simulate.Trace // what work takes
}

// Ask has a plugin place, and gives the plan with workers where it says. A
// placement that the plan cannot be made for is a bad answer too.
func (p Placing) Ask(ctx context.Context, by *host.Plugin) (plan.Plan, error) {
	answer, err := by.Place(ctx, p.Request())
	if err != nil {
		return p.Plan, err
	}
	at := map[runner.Worker]string{}
	for _, x := range answer {
		at[x.Worker] = x.Device
	}
	return p.Plan.Moved(p.Config, p.Machine, at)
}

// Request gives the devices that may be used, what the plan reckons that each
// worker takes, and how long a row takes it where that was measured or is the
// configuration's.
func (p Placing) Request() scheduler.PlaceRequest {
	q := scheduler.PlaceRequest{Devices: p.devices(), Colocate: p.Config.Workers.Colocate != "false"}
	total, onCPU := uint64(0), p.Config.Workers.Device == placement.CPU
	for _, w := range p.Plan.Workers {
		n := scheduler.Need{Worker: w.Name, MemoryBytes: w.MemoryBytes, RowMS: p.rowMS(w.Name.Role)}
		if onCPU {
			n.MemoryBytes += w.HostBytes
		}
		q.Needs = append(q.Needs, n)
		total += n.MemoryBytes
	}
	if onCPU { // the plan fits the host, or its memory is not known
		memory := max(p.Machine.Available, total)
		q.Devices = []scheduler.Device{{ID: placement.CPU, Name: processor(), MemoryBytes: memory, FreeBytes: memory, Health: healthOfCPU}}
		q.Colocate = true
	}
	return q
}

// rowMS is how long a row takes a worker of a role; nil: that is reckoned alone.
func (p Placing) rowMS(role runner.Role) *float64 {
	if !p.Costs.Measured && p.Config.Costs.TargetRow == 0 {
		return nil
	}
	row := p.Costs.Mean()
	if role == runner.Target {
		return &row.TargetMS
	}
	return &row.DrafterMS
}

// devices gives the GPUs that nobody else uses, with what is known of them.
func (p Placing) devices() []scheduler.Device {
	var all []scheduler.Device
	for _, g := range p.Machine.GPUs {
		if g.Busy != "" {
			continue
		}
		d := scheduler.Device{ID: g.UUID, Name: g.Name, MemoryBytes: g.Bytes, FreeBytes: g.Bytes, Health: healthAtStart}
		for _, x := range p.GPUs {
			if x.UUID == g.UUID {
				d.MemoryBytes = x.MemoryBytes
			}
		}
		for _, o := range p.Machine.GPUs {
			if o.UUID != g.UUID && o.Busy == "" {
				d.Links = append(d.Links, scheduler.Link{ID: o.UUID, Peer: p.Machine.Links.Peer(g.UUID, o.UUID)})
			}
		}
		all = append(all, d)
	}
	return all
}
