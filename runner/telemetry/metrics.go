package telemetry

import (
	"net/http"
	"runtime"
	"strconv"

	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// Metrics answers in the Prometheus text format: the run's status as figures,
// counts of events, and the supervisor's own process. status is called once an
// answer, from the connection's goroutine; nothing is kept between answers.
func Metrics(status func() admin.Status, events *Recorder) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var x exposition
		s := status()
		x.run(s)
		x.workers(s)
		x.devices(s)
		x.arenas(s)
		x.events(events)
		x.process()
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(x.text()) // the reader went away: nobody to tell
	})
}

func (x *exposition) run(s admin.Status) {
	x.gauge("step", "Steps committed so far.", float64(s.Step))
	x.gauge("steps_planned", "Steps that the run is to make; 0 when epochs decide.", float64(s.StepsTotal))
	x.gauge("epoch", "Epoch of the newest step.", float64(s.Epoch))
	x.gauge("lineage", "Restores of the run, from 1.", float64(s.Lineage))
	x.counter("rows_committed_total", "Packed rows trained.", float64(s.RowsCommitted))
	x.counter("samples_skipped_total", "Samples settled without training.", float64(s.Skipped))
	x.known("loss", "Loss of the newest step.", s.Loss)
	x.known("heldout_loss", "Newest loss on held-out samples.", s.HeldoutLoss)
	x.known("tokens_per_second", "Tokens trained a second, over the last seconds.", s.TokensPerS)
	x.known("acceptance_length", "Newest acceptance length, the bonus token counted.", s.Acceptance)
	x.gauge("degraded", "Things that do not work as they should.", float64(len(s.Degraded)))
	x.gauge("state", "1 for the state that the run is in.", 1, "state", string(s.State))
	x.gauge("gate_width", "Workers that may warm up at once.", float64(s.Gate.Width))
	x.gauge("gate_holders", "Workers that warm up.", float64(len(s.Gate.Holders)))
	x.gauge("gate_queue", "Workers that wait to warm up.", float64(len(s.Gate.Queue)))
}

func (x *exposition) workers(s admin.Status) {
	for _, w := range s.Workers {
		name := w.Name.String()
		x.gauge("worker_state", "1 for the state that a worker is in.", 1,
			"worker", name, "role", string(w.Role), "device", w.Device, "state", w.State)
		x.gauge("worker_generation", "Starts of a worker.", float64(w.Generation), "worker", name)
		x.gauge("worker_resident_bytes", "Resident memory of a worker.", float64(w.RSSBytes), "worker", name)
		if w.Certificate != nil {
			x.gauge("worker_step_seconds", "Time of one step, measured in warm-up.", w.Certificate.StepMS/1000, "worker", name)
		}
	}
}

// devices gives a figure only where the probe has answered in time: what it
// knew last is no figure of now.
func (x *exposition) devices(s admin.Status) {
	for _, d := range s.Devices {
		labels := []string{"gpu", d.UUID, "index", strconv.Itoa(d.Index)}
		x.gauge("device_status", "1 for how a GPU does: healthy, degraded, critical or unknown.", 1, append(labels[:len(labels):len(labels)], "status", string(d.Status))...)
		if d.Status == admin.Unknown {
			continue
		}
		for _, f := range []struct {
			name, help string
			value      *float64
			scale      float64
		}{
			{"device_utilisation_ratio", "Share of the time in which a kernel ran on a GPU.", d.Utilisation, 0.01},
			{"device_power_watts", "Power that a GPU draws.", d.PowerW, 1},
			{"device_power_limit_watts", "Power that a GPU may draw.", d.PowerLimitW, 1},
			{"device_temperature_celsius", "Temperature of a GPU.", d.TemperatureC, 1},
			{"device_memory_used_bytes", "Memory of a GPU in use, by anybody.", float(d.MemoryUsedBytes), 1},
			{"device_memory_bytes", "Memory of a GPU.", float(d.MemoryTotalBytes), 1},
			{"device_ecc_corrected", "Corrected errors of a GPU's memory since its driver was loaded.", float(d.ECCCorrected), 1},
			{"device_ecc_uncorrected", "Uncorrected errors of a GPU's memory since its driver was loaded.", float(d.ECCUncorrected), 1},
			{"device_processes", "Processes that compute on a GPU.", float(d.ProcessCount), 1},
		} {
			if f.value != nil {
				x.gauge(f.name, f.help, *f.value*f.scale, labels...)
			}
		}
		for _, reason := range d.Throttle {
			x.gauge("device_throttled", "1 for each reason why a GPU's clocks are low.", 1, append(labels[:len(labels):len(labels)], "reason", reason)...)
		}
	}
}

// float widens a count that may not be known.
func float(n *uint64) *float64 {
	if n == nil {
		return nil
	}
	v := float64(*n)
	return &v
}

func (x *exposition) arenas(s admin.Status) {
	for i, a := range s.Arenas {
		labels := []string{"arena", strconv.Itoa(i), "worker", a.Worker.String(), "kind", a.Kind}
		x.gauge("arena_bytes", "Memory of an arena.", float64(a.Bytes), labels...)
		x.counter("hand_offs_total", "Rows that went through an arena.", float64(a.HandOffs), labels...)
		states := map[string]int{}
		for _, slot := range a.Slots {
			states[slot.State]++
		}
		for state, n := range states {
			x.gauge("slots", "Slots by state.", float64(n), append(labels[:len(labels):len(labels)], "state", state)...)
		}
	}
}

func (x *exposition) events(r *Recorder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, n := range r.counts.seen {
		x.counter("events_total", "Events by level and name.", float64(n), "level", string(k.level), "event", k.name)
	}
	x.counter("events_lost_total", "Events that were not written anywhere.", float64(r.counts.lost))
	x.counter("events_unsaved_total", "Events that reached the log alone.", float64(r.counts.unsaved))
}

func (x *exposition) process() {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	x.gauge("supervisor_goroutines", "Goroutines of the supervisor.", float64(runtime.NumGoroutine()))
	x.gauge("supervisor_heap_bytes", "Heap in use by the supervisor.", float64(m.HeapInuse))
	x.gauge("supervisor_obtained_bytes", "Memory that the supervisor's runtime has taken from the system.", float64(m.Sys))
}
