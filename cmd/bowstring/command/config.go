package command

import (
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"
	"gopkg.in/yaml.v3"
)

// ConfigCmd is bowstring config.
type ConfigCmd struct {
	Print    ConfigPrintCmd    `cmd:"" help:"Print the effective settings, each with where it comes from."`
	Template ConfigTemplateCmd `cmd:"" help:"Print a configuration file with every setting, its unit and its default."`
	Path     ConfigPathCmd     `cmd:"" help:"Print the path of the configuration file that is read, if there is one."`
}

// ConfigPrintCmd is bowstring config print.
type ConfigPrintCmd struct {
	JSON bool `name:"json" help:"Print a JSON array."`
}

// Run prints the settings in the form of a configuration file.
func (c *ConfigPrintCmd) Run(app *App) error {
	type setting struct {
		Name   string `json:"name"`
		Value  any    `json:"value"`
		Source string `json:"source"`
	}
	var list []setting
	for _, key := range app.settings.keys {
		value, err := app.settings.effective(key)
		if err != nil {
			return err
		}
		source := app.settings.origin(key).String()
		// store and server are decided together: the one set closer to the command line holds.
		switch {
		case key == "store" && value != "" && app.globals.Store == "":
			value, source = "", source+", but --server is set closer"
		case key == "store":
			value = app.globals.Store
		case key == "server" && value != "" && app.globals.Server == "":
			value, source = "", source+", but --store is set closer"
		case key == "serve.window-memory" && value == size(0).String():
			source += fmt.Sprintf("; %s on this machine", humanize.IBytes(uint64(defaultWindow())))
		}
		list = append(list, setting{key, value, source})
	}
	if c.JSON {
		return printJSON(app.Stdout, list)
	}
	section := ""
	for _, s := range list {
		name := s.Name
		if i := strings.LastIndexByte(name, '.'); i >= 0 {
			if name[:i] != section {
				section = name[:i]
				if err := app.Printf("%s:\n", section); err != nil {
					return err
				}
			}
			name = "  " + name[i+1:]
		}
		var node yaml.Node
		if err := node.Encode(s.Value); err != nil {
			return err
		}
		node.Style |= yaml.FlowStyle // a list is a line, too
		value, err := yaml.Marshal(&node)
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%s: %s", name, strings.TrimSuffix(string(value), "\n"))
		if err := app.Printf("%-48s # %s\n", line, s.Source); err != nil {
			return err
		}
	}
	return nil
}

// ConfigPathCmd is bowstring config path.
type ConfigPathCmd struct{}

// Run prints the path.
func (c *ConfigPathCmd) Run(app *App) error {
	if app.settings.path == "" {
		return fmt.Errorf("no configuration file: %s does not exist, and --config and BOWSTRING_CONFIG name none",
			homely(defaultConfig()))
	}
	return app.Printf("%s\n", app.settings.path)
}
