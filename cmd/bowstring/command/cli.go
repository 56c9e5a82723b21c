package command

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/alecthomas/kong"
)

// CLI is the command line. A flag tagged setting:"" can also be set by the
// environment and by the configuration file; the others belong to one call, and
// so do all flags of a command tagged nosettings:"".
type CLI struct {
	Globals

	Serve      ServeCmd      `cmd:"" help:"Serve a store to Arrow Flight clients."`
	Import     ImportCmd     `cmd:"" help:"Import samples into a dataset."`
	Alter      AlterCmd      `cmd:"" help:"Change columns and rows of a dataset by key, without importing it again."`
	Ls         LsCmd         `cmd:"" help:"List datasets and their splits."`
	Describe   DescribeCmd   `cmd:"" help:"Describe a dataset: columns, classes, splits, snapshots."`
	Get        GetCmd        `cmd:"" help:"Copy samples to a Parquet file, an Arrow file or a folder."`
	Take       TakeCmd       `cmd:"" help:"Show single samples by position or id."`
	Top        TopCmd        `cmd:"" help:"Watch a server: throughput, jobs, and where each stream's time goes."`
	Warm       WarmCmd       `cmd:"" help:"Fill a server's spill with the samples of a job before it starts."`
	Explain    ExplainCmd    `cmd:"" help:"Say how a job will run and what will limit it, or what limits it as it runs."`
	Calibrate  CalibrateCmd  `cmd:"" name:"calibrate" help:"Measure a server, its store, its disk and the network, for explain and for simulations."`
	Tag        TagCmd        `cmd:"" help:"Name a snapshot, as prod in DATASET@prod, or list the names."`
	Untag      UntagCmd      `cmd:"" help:"Remove a name of a snapshot."`
	Drop       DropCmd       `cmd:"" help:"Drop a dataset or one of its snapshots."`
	Attach     AttachCmd     `cmd:"" help:"Make a dataset of data in a bucket, without copying."`
	Cluster    ClusterCmd    `cmd:"" help:"Look at clusters: servers that own the samples of a store together."`
	Token      TokenCmd      `cmd:"" help:"Make, revoke and list tokens that let clients in."`
	OwnStore   StoreCmd      `cmd:"" name:"store" help:"Work on the store itself."`
	Doctor     DoctorCmd     `cmd:"" help:"Look at what a store stands on: servers and their settings, or the disk."`
	GC         GCCmd         `cmd:"" name:"gc" help:"Free what no snapshot refers to any longer."`
	Auth       AuthCmd       `cmd:"" help:"Look at the rules that say who may do what, and on whose account."`
	Usage      UsageCmd      `cmd:"" help:"Say what tenants have used."`
	Retain     RetainCmd     `cmd:"" help:"Drop old snapshots, and keep the newest, recent and tagged ones."`
	Verify     VerifyCmd     `cmd:"" help:"Read and check all that a store has, and repair what is damaged."`
	VerifyStep VerifyStepCmd `cmd:"" name:"verify-step" help:"Compare what ranks get that are to get the same samples."`
	Copy       CopyCmd       `cmd:"" help:"Copy datasets from one store to another, or back up all there is."`
	Demo       DemoCmd       `cmd:"" nosettings:"" passthrough:"" help:"Import photographs, serve them, and train on them with PyTorch (needs bowstring[torch])."`
	Ps         PsCmd         `cmd:"" nosettings:"" passthrough:"" help:"List the servers that bowstring.open in Python has started for you here."`
	Stop       StopCmd       `cmd:"" nosettings:"" passthrough:"" help:"End those servers, or those of some stores."`
	Config     ConfigCmd     `cmd:"" help:"Show the configuration."`
	Version    VersionCmd    `cmd:"" help:"Show the version."`
	Steer      SteerCmd      `cmd:"" help:"Change the weights of a mixture while a job reads it."`
	Lineage    LineageCmd    `cmd:"" help:"Say which samples a step of a job held, on which rank."`
	Apply      ApplyCmd      `cmd:"" nosettings:"" hidden:"" help:"Make cells of blobs by operators, between the standard input and output."`
}

// Globals are the flags of every command.
type Globals struct {
	Store  string `type:"store" setting:"" placeholder:"DIR" help:"Store to work on: a directory (default: ${store_default}), cql://HOST/KEYSPACE in Scylla or Cassandra, or s3://BUCKET/PREFIX (gs://, az://, file://) in a bucket. Not together with --server."`
	Server string `setting:"" client:"" placeholder:"grpc://HOST:PORT" help:"Server to work on; grpc+tls:// encrypts. Not together with --store."`
	clientFlags
	LogLevel  string `setting:"" enum:"debug,info,warn,error" default:"info" help:"Least level of the messages logged: ${enum}. Commands other than serve log warnings unless it is set."`
	LogFormat string `setting:"" enum:"text,json" default:"text" help:"Form of the messages logged: ${enum}."`
	Config    string `type:"path" env:"BOWSTRING_CONFIG" placeholder:"FILE" help:"Configuration file (default: ${config_default}, if there is one)."`
}

// parser builds kong's grammar of the program. kong passes app and the globals to the
// methods that want them.
func (p Program) parser(app *App) (*kong.Kong, error) {
	return kong.New(p.Grammar,
		kong.Name(p.Name),
		kong.Description(p.About),
		kong.Writers(app.Stdout, app.Stderr),
		kong.ConfigureHelp(helpOptions),
		kong.ValueFormatter(helpOf),
		kong.Help(printHelp),
		kong.Vars{"store_default": homely(defaultStore()), "config_default": homely(defaultConfig())},
		kong.Bind(app, p.Globals),
		kong.NamedMapper("store", kong.MapperFunc(mapStore)),
		kong.PostBuild(nameSettings),
	)
}

// BeforeResolve reads the configuration file. kong calls it after the flags are parsed,
// which name the file, and before it asks the resolvers for the others.
func (g *Globals) BeforeResolve(ctx *kong.Context, app *App) error {
	s, err := loadSettings(ctx, app.partial)
	if err != nil {
		return err
	}
	app.settings = s
	ctx.AddResolver(s)
	return nil
}

// AfterApply decides between --store and --server. The one that is set closer to the
// command line wins. Two that are set in the same place are an error.
func (g *Globals) AfterApply(ctx *kong.Context, app *App) error {
	app.settings.parsed(ctx)
	store, server := app.settings.origin("store"), app.settings.origin("server")
	// A value of "" counts as not set, so that a user can override a setting by it.
	if g.Store == "" {
		store.level = fromDefault
	}
	if g.Server == "" {
		server.level = fromDefault
	}
	switch {
	case store.level == fromDefault && server.level == fromDefault:
		g.Store = defaultStore()
	case store.level == server.level:
		return usagef("store and server are both set (%s): a command works on one of them", store)
	case store.level > server.level:
		g.Server = ""
	default:
		g.Store = ""
	}
	if g.Server != "" {
		if _, _, err := serverAddr(g.Server); err != nil {
			return usagef("--server: %v", err)
		}
	}
	return nil
}

// serverPort is the port on which serve listens by default. An address without a port
// means it.
const serverPort = "8815"

// serverAddr turns grpc://HOST:PORT into HOST:PORT, and reports whether the connection is
// to be encrypted. A missing port is serverPort. grpc+unix:///PATH becomes unix:/PATH. It
// returns an error for anything else, because a typo in the scheme must not result in
// plain text.
func serverAddr(s string) (addr string, encrypted bool, err error) {
	if path, ok := socketPath(s); ok {
		return "unix:" + path, false, nil
	}
	u, err := url.Parse(s)
	if err == nil && (u.Scheme == "grpc" || u.Scheme == "grpc+tcp" || u.Scheme == "grpc+tls") && u.Path == "" &&
		u.RawQuery == "" && u.User == nil {
		if host, port, err := net.SplitHostPort(u.Host); err == nil && host != "" && port != "" {
			return u.Host, u.Scheme == "grpc+tls", nil
		}
		// A host with several colons is an IPv6 address without its brackets.
		if host := u.Hostname(); host != "" && (u.Host == host && !strings.Contains(host, ":") || u.Host == "["+host+"]") {
			return net.JoinHostPort(host, serverPort), u.Scheme == "grpc+tls", nil
		}
	}
	return "", false, fmt.Errorf("got %q, want grpc://HOST:PORT or grpc+tls://HOST:PORT, without :PORT for %s, or "+
		"grpc+unix:///PATH", s, serverPort)
}

// logger returns a logger with the level and form of the flags.
func (g *Globals) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(g.LogLevel)); err != nil {
		return nil, err
	}
	opts := &slog.HandlerOptions{Level: level}
	if g.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return slog.New(slog.NewTextHandler(w, opts)), nil
}

// defaultStore is the directory of the store if neither --store nor --server is set. It
// is in the user's XDG data directory.
func defaultStore() string {
	return filepath.Join(xdg("XDG_DATA_HOME", ".local", "share"), "bowstring")
}

// defaultConfig is the path of the user's configuration file.
func defaultConfig() string {
	return filepath.Join(xdg("XDG_CONFIG_HOME", ".config"), "bowstring", "config.yaml")
}

// xdg returns an XDG base directory. The specification ignores a variable with a relative
// path. The default is below the home directory.
func xdg(variable string, fallback ...string) string {
	if dir := os.Getenv(variable); filepath.IsAbs(dir) {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "."
	}
	return filepath.Join(append([]string{home}, fallback...)...)
}

// homely abbreviates the home directory to ~, for people.
func homely(path string) string {
	home, err := os.UserHomeDir()
	if err != nil {
		return path
	}
	rel, err := filepath.Rel(home, path)
	if err != nil || !filepath.IsLocal(rel) {
		return path
	}
	return filepath.Join("~", rel)
}
