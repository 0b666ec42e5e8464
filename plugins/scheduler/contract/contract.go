// Package contract proves that a program keeps the contract of package
// scheduler: it starts it as a run does and drives it through every call.
package contract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
)

// Result is one thing that was looked at.
type Result struct {
	Name   string `json:"name"`
	Status string `json:"status"` // ok, failed or skipped
	Detail string `json:"detail"`
	// Refused is why the plugin could not be started or configured; nil for all else.
	Refused error `json:"-"`
}

// The statuses of a result.
const (
	OK      = "ok"
	Failed  = "failed"
	Skipped = "skipped" // the plugin does not do that, or it could not be told
)

// skip is why a proof says nothing; it is no failure.
type skip string

func (s skip) Error() string { return string(s) }

// endLimit is how long a plugin may take to end when it is asked to: go-plugin
// kills it after two seconds.
const endLimit = 1500 * time.Millisecond

// fallLimit is how long the end of a process may be seen after that of its
// connection.
const fallLimit = 2 * time.Second

// kit is one proof in progress.
type kit struct {
	plugin    *host.Plugin
	gone      bool // it ended by itself: it is asked no more
	leakCalls int  // between two looks at what it leaves behind
	results   []Result
}

// Check starts the plugin of an entry, whose name may be empty, and gives what
// it found, in order. The first failure of a start ends it. Nothing of the
// plugin is left when it returns.
func Check(ctx context.Context, e host.Entry, o host.Options) []Result {
	k := &kit{leakCalls: leakCalls}
	d, err := host.Describe(ctx, e, o)
	if !k.add("describe", err, "%s %s, API versions %v, can %v", d.Name, d.Version, d.APIVersions, d.Capabilities) {
		return k.refused(err)
	}
	k.add("documents its configuration", documented(d), "%d keys", len(d.Config))
	k.add("refuses an unknown key", refusesUnknown(ctx, e, o), "")
	o.Strikes, o.Look = 1<<30, 0 // every failure is to be seen
	k.plugin, err = host.Start(ctx, e, o)
	if !k.add("configure", err, "") {
		return k.refused(err)
	}
	for _, c := range []struct {
		of    scheduler.Capability
		names []string
		run   []func(context.Context) (string, error)
	}{
		{scheduler.Arrange, []string{"arrange whole epochs", "arrange a large pool", "arrange repeated draws"}, []func(context.Context) (string, error){k.epochs, k.large, k.draws}},
		{scheduler.Assign, []string{"assign"}, []func(context.Context) (string, error){k.assign}},
		{scheduler.Place, []string{"place"}, []func(context.Context) (string, error){k.place}},
		{scheduler.OnFailure, []string{"on failure"}, []func(context.Context) (string, error){k.failure}},
		{scheduler.Observe, []string{"observe"}, []func(context.Context) (string, error){k.observe}},
	} {
		for i, name := range c.names {
			if !slices.Contains(d.Capabilities, c.of) {
				k.results = append(k.results, Result{Name: name, Status: Skipped, Detail: "the built-in does that"})
				continue
			}
			k.ask(ctx, name, c.run[i])
		}
	}
	k.ask(ctx, "answers after a deadline that it missed", k.late)
	k.ask(ctx, "answers several at a time", k.together)
	if k.plugin.Can(scheduler.Assign) || k.plugin.Can(scheduler.Arrange) {
		k.ask(ctx, "leaves nothing behind", k.leaves)
	} else {
		k.results = append(k.results, Result{Name: "leaves nothing behind", Status: Skipped, Detail: "it is asked nothing often"})
	}
	began := time.Now()
	err = k.plugin.Close()
	if took := time.Since(began); err == nil && took > endLimit {
		err = fmt.Errorf("want an end within %s, got %s", endLimit, took.Round(time.Millisecond))
	}
	if k.gone && err == nil {
		k.results = append(k.results, Result{Name: "ends when asked", Status: Skipped, Detail: "it had ended by itself"})
		return k.results
	}
	k.add("ends when asked", err, "")
	return k.results
}

// ask makes one proof, of a plugin that is still there; one that ends by itself
// meanwhile is told so, with how.
func (k *kit) ask(ctx context.Context, name string, proof func(context.Context) (string, error)) {
	if k.gone {
		k.results = append(k.results, Result{Name: name, Status: Skipped, Detail: "not asked: it had ended by itself"})
		return
	}
	detail, err := proof(ctx)
	if runner.KindOf(err) == runner.Unavailable {
		short, cancel := context.WithTimeout(ctx, fallLimit)
		how := k.plugin.Fallen(short)
		cancel()
		if k.gone = how != ""; k.gone {
			err = fmt.Errorf("%w: %s", err, how)
		}
	}
	k.add(name, err, "%s", detail)
}

// Passed says whether nothing failed.
func Passed(all []Result) bool {
	return !slices.ContainsFunc(all, func(r Result) bool { return r.Status == Failed })
}

// add notes a result, and says whether it is good.
func (k *kit) add(name string, err error, format string, a ...any) bool {
	r := Result{Name: name, Status: OK, Detail: fmt.Sprintf(format, a...)}
	var none skip
	switch {
	case errors.As(err, &none):
		r.Status, r.Detail = Skipped, string(none)
	case err != nil:
		r.Status, r.Detail = Failed, err.Error()
		if hint := runner.HintOf(err); hint != "" {
			r.Detail += "; " + hint
		}
	}
	k.results = append(k.results, r)
	return err == nil
}

// refused gives the results with why nothing more was looked at.
func (k *kit) refused(err error) []Result {
	k.results[len(k.results)-1].Refused = err
	return k.results
}

func documented(d host.Description) error {
	for _, key := range d.Config {
		if key.Doc == "" {
			return fmt.Errorf("key %s: want a meaning, got none", key.Key)
		}
	}
	return nil
}

// refusesUnknown: the host refuses it by the schema, so nothing may start.
func refusesUnknown(ctx context.Context, e host.Entry, o host.Options) error {
	e.Config = map[string]any{"no_such_key": int64(1)}
	p, err := host.Start(ctx, e, o)
	if err != nil {
		return nil
	}
	_ = p.Close()
	return fmt.Errorf("want a refusal of the key no_such_key, got a start")
}
