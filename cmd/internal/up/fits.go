package up

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
)

// fits refuses a configuration that would resume another run than the one that
// was begun, by its own config.yaml and before anything is started. What only
// files can tell is compared by the manifest, once they are there; a run that
// has lost its config.yaml is compared by that alone.
func fits(d *rundir, is *config.Config) error {
	file := d.join("config.yaml")
	if !hasJournal(d.path) || !exists(file) {
		return nil
	}
	was, err := config.Load(file, nil)
	if err != nil {
		return runner.Errorf(runner.Invalid, "resume run %q: %w", d.name, err)
	}
	if err := absolute(was); err != nil {
		return err
	}
	if is.Workers.Targets == config.Auto || is.Workers.Drafters == config.Auto { // as the run began
		is.Workers.Targets, is.Workers.Drafters, is.Workers.Colocate = was.Workers.Targets, was.Workers.Drafters, was.Workers.Colocate
	}
	own := was.Target.Directory != "" && was.Target.Directory == is.Target.Directory
	for _, s := range []struct {
		path    string
		was, is any
	}{
		{"run.seed", was.Run.Seed, is.Run.Seed},
		{"target", was.Target, is.Target},
		{"data", was.Data, is.Data},
		{"training", was.Training, is.Training},
		{"drafter", was.Drafter, is.Drafter},
		{"workers.drafters", was.Workers.Drafters, is.Workers.Drafters},
	} {
		skip := func(path string) bool { return free(path) || own && strings.HasPrefix(path, "target.embedded.") }
		if path, was, is := differs(s.path, reflect.ValueOf(s.was), reflect.ValueOf(s.is), skip); path != "" {
			return runner.Errorf(runner.Invalid, "resume run %q: %s: want what the run began with, %s, got %s", d.name, path, was, is).
				WithHint("`dflash-runner up --resume --name %s` without -f and --set takes the run's own configuration; to train on with another one, start a new run with drafter.init_from", d.name)
		}
	}
	return nil
}

// free says whether a setting may change in a run: it bounds a life of it, or
// changes no more than bits.
func free(path string) bool {
	return strings.HasPrefix(path, "training.stop_after.") || strings.HasPrefix(path, "drafter.flex.") || path == "drafter.attention" || path == "target.attention" || path == "target.replay"
}

// derived are settings that follow from others, or from the target, where they
// are 0 or less: what is written out then may say the same.
var derived = map[string]bool{"training.steps": true, "training.epochs": true, "data.max_tokens": true, "drafter.hidden_size": true,
	"drafter.intermediate_size": true, "drafter.heads": true, "drafter.kv_heads": true, "drafter.head_dim": true, "drafter.mask_token_id": true}

// differs gives the first setting at or below path that two values disagree in.
func differs(path string, was, is reflect.Value, skip func(path string) bool) (where, first, second string) {
	if was.Kind() == reflect.Struct {
		for i := range was.NumField() {
			name, _, _ := strings.Cut(was.Type().Field(i).Tag.Get("yaml"), ",")
			if where, first, second = differs(path+"."+name, was.Field(i), is.Field(i), skip); where != "" {
				return where, first, second
			}
		}
		return "", "", ""
	}
	first, second = fmt.Sprint(was.Interface()), fmt.Sprint(is.Interface())
	if first == second || skip(path) || derived[path] && (was.Int() <= 0 || is.Int() <= 0) {
		return "", "", ""
	}
	return path, first, second
}
