package command

import (
	"bytes"
	"encoding/json"
	"io"
	"runtime"
	"runtime/debug"

	"bowstring/cmd/bowstring/export"
	"bowstring/cmd/bowstring/source"
	"bowstring/fetch"
)

// version is set by the linker if the version of the build's own record is not to be
// used. A build from an archive has no such record.
var version string

// VersionCmd is bowstring version.
type VersionCmd struct {
	JSON bool `name:"json" help:"Print a JSON object."`
}

// build describes this binary, for version and for its user agent.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a tree with uncommitted changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
	// Operators names the libraries that decode samples, by kind.
	Operators map[string]string `json:"operators"`
	// Formats are the formats that import reads and get writes.
	Formats formats `json:"formats"`
}

type formats struct {
	Import []string `json:"import"`
	Get    []string `json:"get"`
}

// thisBuild returns the description of this binary. Go records the commit in the binary,
// so that the Makefile need not pass it.
func thisBuild() build {
	b := build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Operators: fetch.OperatorEngines(),
		Formats:   formats{Import: source.Formats(), Get: export.Formats}}
	// The linker's version wins over the module's.
	info, ok := debug.ReadBuildInfo()
	if ok {
		if b.Version == "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	if b.Version == "" || b.Version == "(devel)" {
		b.Version = "devel"
	}
	return b
}

// Run prints the version.
func (c *VersionCmd) Run(app *App) error {
	b := thisBuild()
	if c.JSON {
		return printJSON(app.Stdout, b)
	}
	commit := b.Commit
	if commit == "" {
		commit = "unknown"
	}
	if b.Modified {
		commit += " (modified)"
	}
	return app.Printf("bowstring %s\ncommit    %s\ngo        %s %s\nimages    %s\naudio     %s\n",
		b.Version, commit, b.Go, b.Platform, b.Operators["image"], b.Operators["audio"])
}

// printJSON writes v as an indented JSON document. Characters that could control a
// terminal are escaped.
func printJSON(w io.Writer, v any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	// Expressions with < and > stay readable.
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(printableJSON(text.Bytes()))
	return err
}
