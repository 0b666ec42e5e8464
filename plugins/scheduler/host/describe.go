package host

import (
	"context"
	"errors"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
)

// Description is what a plugin says of itself.
type Description struct {
	Name         string                 `json:"name"`
	Version      string                 `json:"version"`
	APIVersions  []uint32               `json:"api_versions"`
	Capabilities []scheduler.Capability `json:"capabilities"`
	Asked        string                 `json:"asked"` // Arrange and Assign: OnStreams or ByCalls
	Config       []Key                  `json:"config"`
}

// How a plugin is asked what is asked often.
const (
	OnStreams = "on streams" // one for each kind of question
	ByCalls   = "by calls"   // of an SDK that has no streams
)

// Key is one key of a plugin's configuration.
type Key struct {
	Key      string   `json:"key"`
	Type     string   `json:"type"`
	Doc      string   `json:"doc"`
	Required bool     `json:"required"`
	Default  any      `json:"default,omitempty"`
	Min      *float64 `json:"min,omitempty"`
	Max      *float64 `json:"max,omitempty"`
	OneOf    []string `json:"one_of,omitempty"`
}

// Describe starts a plugin, asks who it is and how it is configured, and ends it.
func Describe(ctx context.Context, e Entry, o Options) (d Description, err error) {
	p := &process{entry: e, output: &lines{}}
	defer func() {
		ending := p.stop()
		err = errors.Join(p.died(err), ending)
	}()
	if err := p.open(ctx, o, 1); err != nil {
		return d, err
	}
	if err := p.asks(ctx, o); err != nil {
		return d, err
	}
	fields, err := p.schema(ctx, o)
	if err != nil {
		return d, err
	}
	d = Description{Name: p.info.GetName(), Version: p.info.GetVersion(), APIVersions: p.info.GetApiVersions(), Capabilities: p.capabilities(), Asked: ByCalls}
	if p.info.GetAsk() {
		d.Asked = OnStreams
	}
	for _, f := range fields {
		d.Config = append(d.Config, Key{Key: f.GetKey(), Type: typeNames[f.GetType()], Doc: f.GetDoc(), Required: f.GetRequired(), Default: plain(f.GetDefault()),
			Min: f.Min, Max: f.Max, OneOf: f.GetOneOf()})
	}
	return d, nil
}

// Pin makes an entry of a program as it is now, for one that a person names on
// the command line.
func Pin(path string, args ...string) (Entry, error) {
	full, err := trusted(path)
	if err != nil {
		return Entry{}, err
	}
	sum, err := Sum(full)
	if err != nil {
		return Entry{}, err
	}
	return Entry{Program: File{full, sum}, Args: args}, nil
}
