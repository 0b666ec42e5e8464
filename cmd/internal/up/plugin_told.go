package up

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// answers counts what came of a plugin's answers, since this supervisor began.
type answers struct {
	used      atomic.Uint64 // that were right
	fallbacks atomic.Uint64 // questions that the built-in answered in its place
	samples   atomic.Uint64 // that it arranged
	moved     atomic.Uint64 // of them, elsewhere than the built-in has them
	note      func(name, message string)
}

// toldSources is how many sources of the data an event tells of, at most.
const toldSources = 4

// arranged compares an order with the built-in's, and tells how they differ: so
// one run shows what a plugin does.
func (a *answers) arranged(q scheduler.ArrangeRequest, out []runner.Sample) {
	first := scheduler.First(q)
	moved := 0
	for i := range min(len(first), len(out)) {
		if out[i] != first[i] {
			moved++
		}
	}
	a.samples.Add(uint64(len(out)))
	a.moved.Add(uint64(moved))
	said := fmt.Sprintf("epoch %d: %d samples, %d elsewhere than the built-in has them", q.Epoch, len(out), moved)
	if moved > 0 {
		is, was := mixOf(q, out), mixOf(q, first)
		said += fmt.Sprintf("; of %.0f tokens on average, not %.0f", is.tokens, was.tokens)
		for i, s := range q.Sources {
			if len(q.Sources) > 1 && i < toldSources {
				said += fmt.Sprintf("; %d of %s, not %d", is.of[i], filepath.Base(s.Name), was.of[i])
			}
		}
	}
	a.note("arranged", said)
}

// mix is what samples are like.
type mix struct {
	tokens float64     // of one, on average
	of     map[int]int // by source
}

func mixOf(q scheduler.ArrangeRequest, samples []runner.Sample) mix {
	known := make(map[runner.Sample]scheduler.Candidate, len(q.Pool))
	for _, c := range q.Pool {
		known[c.Sample] = c
	}
	m := mix{of: map[int]int{}}
	for _, s := range samples {
		m.tokens += float64(known[s].Tokens) / float64(len(samples))
		m.of[known[s].Source]++
	}
	return m
}

// refusedPlugin keeps that the run has no plugin, and why, for status.
func (u *up) refusedPlugin(why error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refused = why.Error()
}

// pluginStatus fills in what the plugin does, and whether it is as it should
// be. Under the lock.
func (u *up) pluginStatus(s *admin.Status) {
	entry, _ := u.config.Scheduler.Plugin()
	switch {
	case entry == nil:
		return
	case u.plugin == nil && u.refused != "":
		s.Plugin = &admin.PluginStatus{Name: entry.Name, SHA256: entry.SHA256, State: admin.PluginRefused, Capabilities: []string{}, Last: u.refused}
		return
	case u.plugin == nil:
		if wait := u.pluginWait(); wait != nil { // it is started now
			s.Plugin = &admin.PluginStatus{Name: entry.Name, SHA256: entry.SHA256, State: host.Starting, Capabilities: []string{}, Waiting: wait}
		}
		return
	}
	is := u.plugin.State()
	s.Plugin = &admin.PluginStatus{Name: is.Name, Version: is.Version, SHA256: entry.SHA256, State: is.State, Pid: is.Pid, APIVersion: is.APIVersion, Starts: is.Starts,
		Calls: is.Calls, Answers: u.answers.used.Load(), Refused: is.Refused, Fallbacks: u.answers.fallbacks.Load(), Strikes: is.Strikes, Ends: is.Ends, Last: is.Last, Capabilities: []string{},
		RSSBytes: is.Vitals.MemoryBytes, Threads: is.Vitals.Threads, Goroutines: is.Vitals.Goroutines, Waiting: u.pluginWait()}
	for _, c := range is.Capabilities {
		s.Plugin.Capabilities = append(s.Plugin.Capabilities, string(c))
	}
	if !is.Until.IsZero() {
		s.Plugin.Until = &is.Until
	}
	if is.Refused > 0 || is.Ends > 0 {
		s.Degraded = append(s.Degraded, admin.Reason{Name: schedulerSubject, Detail: pluginTrouble(s.Plugin, s.DecidedBy())})
	}
}

// pluginTrouble says what was wrong with a plugin. Whoever watches takes another
// text for another trouble: what changes with the time or with each question, as
// how long it is waited for and how many there were, is told elsewhere.
func pluginTrouble(p *admin.PluginStatus, by string) string {
	said := fmt.Sprintf("plugin %s is %s: %d answers refused, strike %d, ended %d times, last: %s", p.Name, p.State, p.Refused, p.Strikes, p.Ends, p.Last)
	if by != "" {
		said += "; " + by
	}
	return said
}

// pluginWait is what the plugin owes for the longest; nil for nothing.
func (u *up) pluginWait() *admin.PluginWait {
	oldest, n := u.waits.Oldest()
	if n == 0 {
		return nil
	}
	return &admin.PluginWait{Question: oldest.What, WaitedMS: time.Since(oldest.Since).Milliseconds(), DeadlineMS: oldest.Limit.Milliseconds(), Questions: n}
}

// pluginSummary is who decided, for the summary; nil where no plugin was asked
// for. Under the lock.
func (u *up) pluginSummary() *admin.SummaryPlugin {
	p := u.last.Plugin
	if p == nil {
		return nil
	}
	return &admin.SummaryPlugin{Name: p.Name, Version: p.Version, SHA256: p.SHA256, State: p.State, Answers: u.answers.used.Load(), Refused: p.Refused, Fallbacks: p.Fallbacks,
		Ends: p.Ends, Samples: u.answers.samples.Load(), Moved: u.answers.moved.Load(), Last: p.Last}
}
