package up

import (
	"context"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
)

// pythonForPlugin makes the Python environment before the plugin starts, where
// that is a script which runs with it. Its files are checked first: making an
// environment takes minutes.
func (u *up) pythonForPlugin(ctx context.Context) error {
	entry, at := u.config.Scheduler.Plugin()
	if entry == nil || !Catalog(*entry).Borrows() {
		return nil
	}
	if err := host.Verify(Catalog(*entry)); err != nil && u.config.Scheduler.Required == "true" {
		err = PluginError(u.config, at, err)
		u.refusedPlugin(err)
		return &pluginRefused{err}
	}
	return u.environmentStage(ctx)
}
