package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"
	"gopkg.in/yaml.v3"

	"bowstring/schema"
)

// level is how close to the command line a value was set. A higher one wins.
type level int

const (
	// The order is the precedence, from the lowest to the highest.
	fromDefault level = iota
	fromFile
	fromEnv
	fromFlag
)

// origin is where the effective value of a setting comes from. The zero value is the
// default.
type origin struct {
	level level
	place string // the variable's name, or FILE:LINE
}

func (o origin) String() string {
	switch o.level {
	case fromFlag:
		return "command line"
	case fromEnv:
		return "environment " + o.place
	case fromFile:
		return o.place
	default:
		return "default"
	}
}

// settings is the content of the configuration file, and the origin of each value. It is
// kong's resolver: its value for a flag applies if neither the command line nor the
// environment sets the flag. It is constant after AfterApply.
type settings struct {
	path    string                // the file that was read, or ""
	partial bool                  // whether the file may have sections of commands that this program lacks
	known   map[string]*kong.Flag // all settings by key, such as serve.listen
	keys    []string              // keys of known, in the order of the grammar
	file    map[string]*yaml.Node // values of the file by key
	flags   map[*kong.Flag]bool   // set on the command line
}

// nameSettings gives each setting its environment variable, such as BOWSTRING_LOG_LEVEL
// or BOWSTRING_SERVE_LISTEN. The name follows from the key, so that it needs no tag.
func nameSettings(k *kong.Kong) error {
	eachSetting(k.Model.Node, "", func(key string, f *kong.Flag) {
		env := "BOWSTRING_" + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(key))
		f.Envs = append(f.Envs, env)
		f.Tag.Envs = append(f.Tag.Envs, env)
	})
	return nil
}

// eachSetting calls visit for each setting at node and below it, in the order of the
// grammar.
func eachSetting(node *kong.Node, prefix string, visit func(key string, f *kong.Flag)) {
	for _, f := range node.Flags {
		if f.Tag.Has("setting") {
			visit(prefix+f.Name, f)
		}
	}
	for _, child := range node.Children {
		if child.Tag != nil && child.Tag.Has("nosettings") {
			continue
		}
		eachSetting(child, prefix+child.Name+".", visit)
	}
}

// loadSettings reads the configuration file that ctx or the environment names. The
// commands config path and version do not read it, because they have to work with a
// broken file.
func loadSettings(ctx *kong.Context, partial bool) (settings, error) {
	s := settings{partial: partial, known: map[string]*kong.Flag{}, file: map[string]*yaml.Node{}, flags: map[*kong.Flag]bool{}}
	eachSetting(ctx.Model.Node, "", func(key string, f *kong.Flag) {
		s.known[key] = f
		// keys keeps the order, which a map loses. Templates and listings need it.
		s.keys = append(s.keys, key)
	})
	var err error
	if s.path, err = configPath(ctx); err != nil || s.path == "" {
		return s, err
	}
	switch ctx.Command() {
	case "version", "config path":
		return s, nil
	}
	data, err := os.ReadFile(s.path)
	if err != nil {
		return s, fmt.Errorf("configuration file: %w", err)
	}
	return s, s.read(data)
}

// configPath returns the file that --config or the environment names, or else the user's,
// or "". The current directory has no influence. Its files may be of any author, and the
// configuration decides where tokens and passwords are sent.
func configPath(ctx *kong.Context) (string, error) {
	for _, f := range ctx.Model.Flags {
		if f.Name != "config" {
			continue
		}
		if path, _ := ctx.FlagValue(f).(string); path != "" {
			return path, nil
		}
	}
	path := defaultConfig()
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("configuration file: %w", err)
	default:
		return path, trusted(path, info)
	}
}

// trusted returns an error for a file that another user owns or can write. A file that is
// named by --config is not checked: naming it is the user's decision.
func trusted(path string, info fs.FileInfo) error {
	owner, known := info.Sys().(*syscall.Stat_t)
	switch {
	case !known:
		return nil
	case owner.Uid != 0 && int(owner.Uid) != os.Geteuid():
		return fmt.Errorf("configuration file: %s belongs to user %d, and is not read: it says where tokens go; "+
			"--config names a file all the same", path, owner.Uid)
	case info.Mode().Perm()&0o002 != 0:
		return fmt.Errorf("configuration file: %s can be written by every user, and is not read: it says where tokens "+
			"go; chmod o-w %s", path, path)
	}
	return nil
}

// read parses the configuration file. Unknown settings are errors with their line,
// because a misspelled limit would otherwise be no limit.
func (s *settings) read(data []byte) error {
	var doc yaml.Node
	// The file is decoded into nodes, which have lines for messages.
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return fmt.Errorf("%s: %s", s.path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) == 0 { // empty, or comments only
		return nil
	}
	return s.readMapping(doc.Content[0], "")
}

// readMapping reads a section. prefix is its key with a dot.
func (s *settings) readMapping(node *yaml.Node, prefix string) error {
	if node.Kind == yaml.ScalarNode && node.Tag == "!!null" {
		return nil
	}
	if node.Kind != yaml.MappingNode {
		return s.fault(node, "want settings of the form name: value")
	}
	// YAML forbids duplicate keys, but the decoder of nodes accepts them.
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, value := node.Content[i], node.Content[i+1]
		// An anchor may be used for several settings.
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		key := prefix + name.Value
		if seen[key] {
			return s.fault(name, "%q is set twice", key)
		}
		seen[key] = true
		flag, ok := s.known[key]
		switch {
		case !ok && s.isSection(key):
			if err := s.readMapping(value, key+"."); err != nil {
				return err
			}
		case !ok && s.partial && value.Kind == yaml.MappingNode: // a section of a command that this program lacks
		case !ok:
			return s.fault(name, "unknown setting %q; %s", key, s.suggest(key))
		default:
			if err := s.check(key, flag, value); err != nil {
				return err
			}
			// An empty path counts as not set. Joined with the folder of the file, it
			// would name that folder.
			if value.Value != "" || value.Kind != yaml.ScalarNode || flag.Tag.Type != "path" {
				s.file[key] = value
			}
		}
	}
	return nil
}

// isSection reports whether key names a command with settings.
func (s *settings) isSection(key string) bool {
	for _, k := range s.keys {
		if strings.HasPrefix(k, key+".") {
			return true
		}
	}
	return false
}

// check decodes the value of the file into a new variable of the flag's type. The flag
// itself stays as it is: it may be set closer to the command line.
func (s *settings) check(key string, f *kong.Flag, node *yaml.Node) error {
	value, err := s.value(f, node)
	if err != nil {
		return err
	}
	// kong's mapper writes to any variable of the type.
	trial := reflect.New(f.Target.Type()).Elem()
	scan := kong.Scan().PushTyped(value, kong.FlagValueToken)
	if err := f.Mapper.Decode(&kong.DecodeContext{Value: f.Value, Scan: scan}, trial); err != nil {
		return s.fault(node, "%s: %v", key, err)
	}
	if f.Enum != "" && !f.EnumMap()[fmt.Sprint(trial.Interface())] {
		return s.fault(node, "%s: got %q, want one of %s", key, node.Value, strings.Join(f.EnumSlice(), ", "))
	}
	return nil
}

// value returns the value of node as kong accepts it. A relative path is relative to the
// configuration file, because the working directory differs from call to call.
func (s *settings) value(f *kong.Flag, node *yaml.Node) (any, error) {
	switch {
	case node.Kind == yaml.SequenceNode && f.IsSlice():
		var list []string
		for _, item := range node.Content {
			if item.Kind != yaml.ScalarNode {
				return nil, s.fault(item, "%s: want a list of plain values", f.Name)
			}
			list = append(list, item.Value)
		}
		if len(list) == 0 {
			return []any{}, nil
		}
		return kong.JoinEscaped(list, f.Tag.Sep), nil // as on the command line, where a list may be of numbers
	case node.Kind != yaml.ScalarNode:
		return nil, s.fault(node, "%s: want one value", f.Name)
	}
	v := node.Value
	isPath := f.Tag.Type == "path" || f.Tag.Type == "store" && !IsRemote(v)
	if isPath && v != "" && !filepath.IsAbs(v) && !strings.HasPrefix(v, "~") {
		v = filepath.Join(filepath.Dir(s.path), v)
	}
	return v, nil
}

// fault returns an error with the file and the line of node.
func (s *settings) fault(node *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s", s.path, node.Line, fmt.Sprintf(format, args...))
}

// suggest returns a hint for an unknown setting: the most similar key, or the setting of
// the same name in another section, or all keys.
func (s *settings) suggest(key string) string {
	best := schema.Nearest(key, s.keys)
	last := key[strings.LastIndexByte(key, '.')+1:]
	for _, k := range s.keys {
		if best == "" && (k == last || strings.HasSuffix(k, "."+last)) {
			best = k
		}
	}
	if best == "" {
		return "known are " + strings.Join(s.keys, ", ")
	}
	return fmt.Sprintf("did you mean %q?", best)
}

// Validate implements kong.Resolver. The file was checked when it was read.
func (s settings) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver. kong calls it for flags that are not on the command
// line, also if the environment sets them; the environment takes precedence.
func (s settings) Resolve(_ *kong.Context, _ *kong.Path, f *kong.Flag) (any, error) {
	// The file has few settings, so that a search is fast enough.
	for key, node := range s.file {
		if s.known[key] != f {
			continue
		}
		if _, set := environment(f); set {
			return nil, nil
		}
		return s.value(f, node)
	}
	return nil, nil
}

// environment returns the name of the variable that sets f, if one does.
func environment(f *kong.Flag) (name string, set bool) {
	for _, env := range f.Envs {
		if _, ok := os.LookupEnv(env); ok {
			return env, true
		}
	}
	return "", false
}

// parsed records the flags that the command line sets. kong's path also has resolved
// flags, which come from the environment or the file.
func (s *settings) parsed(ctx *kong.Context) {
	for _, p := range ctx.Path {
		if p.Flag != nil && !p.Resolved {
			s.flags[p.Flag] = true
		}
	}
}

// origin returns where the effective value of a setting comes from.
func (s *settings) origin(key string) origin {
	f, known := s.known[key]
	switch {
	case !known: // of a command that this program lacks
		return origin{}
	case s.flags[f]:
		return origin{level: fromFlag}
	}
	if env, set := environment(f); set {
		return origin{fromEnv, env}
	}
	if node, ok := s.file[key]; ok {
		return origin{fromFile, fmt.Sprintf("%s:%d", s.path, node.Line)}
	}
	return origin{}
}

// effective returns the value of any setting, also of a command that is not running. For
// such a command kong resolves the environment and the defaults, but not the file. A type
// with a String method is returned as its text.
func (s *settings) effective(key string) (any, error) {
	f := s.known[key]
	target := f.Target
	if s.origin(key).level == fromFile {
		value, err := s.value(f, s.file[key])
		if err != nil {
			return nil, err
		}
		target = reflect.New(f.Target.Type()).Elem()
		scan := kong.Scan().PushTyped(value, kong.FlagValueToken)
		if err := f.Mapper.Decode(&kong.DecodeContext{Value: f.Value, Scan: scan}, target); err != nil {
			return nil, err
		}
	}
	if text, ok := target.Interface().(fmt.Stringer); ok {
		return text.String(), nil
	}
	return target.Interface(), nil
}

// text returns the value of a setting as text. A setting that cannot be read counts as not
// set, because the configuration was checked before the command ran.
func (s *settings) text(key string) string {
	value, err := s.effective(key)
	if err != nil {
		return ""
	}
	text, _ := value.(string)
	return text
}

// Size is size, for other programs that are built on this package.
type Size = size

// size is a number of bytes, written with a unit such as 512MiB or 4GB. Zero is auto: the
// program chooses.
type size int64

// UnmarshalText parses a size or auto. It limits sizes to 2^62, so that sums of two do
// not overflow.
func (s *size) UnmarshalText(text []byte) error {
	if string(text) == "auto" {
		*s = 0
		return nil
	}
	n, err := humanize.ParseBytes(string(text))
	if err != nil || n == 0 || n > 1<<62 {
		return fmt.Errorf("got %q, want a size such as 512MiB or 4GB, or auto", text)
	}
	*s = size(n)
	return nil
}

func (s size) String() string {
	switch {
	case s == 0:
		return "auto"
	case s%(1<<30) == 0:
		return fmt.Sprintf("%dGiB", s>>30)
	case s%(1<<20) == 0:
		return fmt.Sprintf("%dMiB", s>>20)
	default:
		return fmt.Sprintf("%dB", int64(s))
	}
}

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

// Run prints the effective settings in the form of a configuration file, each with its
// origin as a comment.
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
		// One of store and server is in effect: the one that is set closer to the command
		// line. The other one is shown as empty, with the reason.
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
		node.Style |= yaml.FlowStyle // a list is on one line as well
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
