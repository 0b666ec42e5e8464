package telemetry

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// prefix is the name space of all metrics.
const prefix = "dflash_runner_"

// exposition gathers figures and writes them in the Prometheus text format
// 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats): each metric's
// help and type once, then its figures together.
type exposition struct {
	order    []string
	families map[string]*family
}

type family struct {
	help, kind string
	lines      []string
}

func (x *exposition) gauge(name, help string, v float64, labels ...string) {
	x.add("gauge", name, help, v, labels)
}

func (x *exposition) counter(name, help string, v float64, labels ...string) {
	x.add("counter", name, help, v, labels)
}

// known adds a gauge whose figure may not be known yet.
func (x *exposition) known(name, help string, v *float64) {
	if v != nil {
		x.gauge(name, help, *v)
	}
}

// add takes a figure; labels are pairs of name and value.
func (x *exposition) add(kind, name, help string, v float64, labels []string) {
	f := x.families[name]
	if f == nil {
		f = &family{help: help, kind: kind}
		if x.families == nil {
			x.families = map[string]*family{}
		}
		x.families[name] = f
		x.order = append(x.order, name)
	}
	var pairs []string
	for i := 0; i+1 < len(labels); i += 2 {
		pairs = append(pairs, labels[i]+`="`+escape(labels[i+1])+`"`)
	}
	line := prefix + name
	if len(pairs) > 0 {
		line += "{" + strings.Join(pairs, ",") + "}"
	}
	f.lines = append(f.lines, line+" "+strconv.FormatFloat(v, 'g', -1, 64))
}

// escape makes s fit between the quotes of a label's value.
func escape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s)
}

func (x *exposition) text() []byte {
	var b bytes.Buffer
	for _, name := range x.order {
		f := x.families[name]
		fmt.Fprintf(&b, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, name, f.help, prefix, name, f.kind)
		slices.Sort(f.lines)
		for _, line := range f.lines {
			b.WriteString(line)
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}
