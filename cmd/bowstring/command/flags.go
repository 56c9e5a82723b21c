package command

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"gopkg.in/yaml.v3"

	"bowstring/fetch/object"
	"bowstring/fetch/store"
)

// serveFlags are the settings of serve. Their tags are the one source of the help, the
// template of a configuration file, docs/cli.md and the schema of the Helm chart's
// values:
//
//   - placeholder is the unit, see units;
//   - default is the value without a setting, and unset explains a default that is not
//     obvious;
//   - group is the heading;
//   - basic shows the flag in --help, and not only in --help-all.
//
// Each group of flags has a type of its own, so that the code that needs a group cannot
// depend on the others.
type serveFlags struct {
	runFlags     `group:"Starting and stopping"`
	limitFlags   `group:"Limits"`
	authFlags    `group:"Callers and TLS"`
	recordFlags  `group:"Policy and records"`
	spillFlags   `group:"Cache on a disk"`
	bucketFlags  `group:"Buckets"`
	clusterFlags `group:"Cluster"`
	localFlags   `group:"Clients on this machine"`
	observeFlags `group:"Observing"`
}

// runFlags define where a server listens and when it stops.
type runFlags struct {
	Listen       string        `setting:"" basic:"" default:"127.0.0.1:8815" placeholder:"HOST:PORT" help:"Address to listen on. Port 0 is any free port. If other machines can reach it, the server needs TLS and authentication, or --insecure. grpc+unix:///PATH is a socket for the server's own user."`
	ReadyFile    string        `setting:"" type:"path" placeholder:"FILE" help:"File to write the server's address to once it serves; removed when it stops."`
	DrainTimeout time.Duration `setting:"" default:"30s" placeholder:"DURATION" help:"How long running streams may go on after SIGTERM or SIGINT. A second signal ends them at once."`
	ExitWhenIdle time.Duration `setting:"" default:"0s" unset:"never" placeholder:"DURATION" help:"Stop as after SIGTERM when no client was connected for this time. Clients close idle connections; the server closes them after 15 minutes."`
	GCEvery      time.Duration `setting:"" default:"0s" unset:"never" placeholder:"DURATION" help:"Delete data that no snapshot uses about this often, at random times, as gc does. Data that streams read stays. If several servers share a store, one of them collects at a time."`
	GCRate       size          `setting:"" default:"auto" unset:"as fast as it can" placeholder:"SIZE" help:"How many bytes a second such a collection of a store in Scylla or Cassandra reads and removes."`
}

// bucketFlags define which buckets samples may be read from, and at which prices.
type bucketFlags struct {
	Buckets           string `setting:"" unset:"all in which samples are attached" placeholder:"URL,…" help:"Buckets that attached samples may be read from; one that ends in * stands for all that begin so. Samples in others are PERMISSION_DENIED."`
	BucketCredentials string `setting:"" unset:"those of the environment, for all tenants" type:"path" placeholder:"FILE" help:"By which credentials buckets are read in which samples are attached, and for which tenants; docs/buckets.md has the form."`
	Prices            string `setting:"" unset:"list prices that the program comes with" type:"path" placeholder:"FILE" help:"Prices of requests and bytes, in their stead; docs/cost.md has the form."`
	Transfer          string `setting:"" enum:"in-region,cross-region,internet" default:"in-region" placeholder:"WAY" help:"Which way bytes of buckets go to this server, as it is priced: ${enum}."`
}

// requests returns the object that counts, limits and prices the requests to buckets. All
// buckets of the server share it. sharers returns the number of nodes that make requests:
// a bucket's limit is divided among them.
func (f *bucketFlags) requests(sharers func() int) (*object.Requests, error) {
	o := object.RequestsOptions{Tenant: tenantOf, Sharers: sharers, Transfer: object.Transfer(f.Transfer)}
	if f.Prices != "" {
		p, err := object.ReadPrices(f.Prices)
		if err != nil {
			return nil, fmt.Errorf("--prices: %w", err)
		}
		o.Prices = p
	}
	return object.NewRequests(o), nil
}

// tenantOf returns the tenant to which a read is charged.
func tenantOf(ctx context.Context) string { return store.CallerFrom(ctx).Tenant }

// limitFlags limit a server's memory, streams and reads.
type limitFlags struct {
	WindowMemory     size          `setting:"" basic:"" default:"auto" unset:"a quarter of the memory of the control group or machine" placeholder:"SIZE" help:"Memory for what all streams hold together: reads under way, samples that wait, batches on their way to consumers. What does not fit waits, or goes in smaller batches."`
	UploadMemory     size          `setting:"" default:"512MiB" placeholder:"SIZE" help:"Memory for what clients send and is being decoded, all together; one address may take three quarters, and a record batch half."`
	EvaluationMemory size          `setting:"" default:"256MiB" placeholder:"SIZE" help:"Memory for selections that are computed and kept while jobs use them, for lengths, weights and classes of samples, and for indexes of ids, all together."`
	MaxStreams       int           `setting:"" default:"1024" placeholder:"N" help:"DoGet, DoPut and DoExchange calls that may run at once; one address may run half of them, and 64 at least. Four times as many connections may be open, and 4,096 at least; one address may open a quarter of them."`
	ReadTimeout      time.Duration `setting:"" default:"30s" placeholder:"DURATION" help:"How long a read of a sample takes at most, whatever the store does, before its stream ends as UNAVAILABLE; a second more for each mebibyte."`
}

// authFlags define how callers are authenticated.
type authFlags struct {
	TLSCert          string        `name:"tls-cert" setting:"" basic:"" type:"path" placeholder:"FILE" help:"Certificate of the server and its intermediate certificates, as PEM. The server reads the file again when it changes."`
	TLSKey           string        `name:"tls-key" setting:"" basic:"" type:"path" placeholder:"FILE" help:"Its private key, as PEM."`
	TLSClientCA      string        `name:"tls-client-ca" setting:"" type:"path" placeholder:"FILE" help:"Roots of clients' certificates, as PEM: a client with one of theirs is let in by the name in it."`
	TLSRequireClient bool          `name:"tls-require-client" setting:"" help:"Refuse connections without a client certificate, those of health checks too."`
	TLSMinVersion    string        `name:"tls-min-version" setting:"" enum:"1.2,1.3" default:"1.3" placeholder:"VERSION" help:"Least version of TLS: ${enum}."`
	Tokens           string        `setting:"" basic:"" type:"path" placeholder:"FILE" help:"File of tokens that let clients in; see token create. Read again when it changes."`
	OIDCIssuer       string        `name:"oidc-issuer" setting:"" placeholder:"URL" help:"OpenID Connect provider whose tokens let clients in."`
	OIDCAudience     string        `name:"oidc-audience" setting:"" placeholder:"NAME" help:"Audience that its tokens must have."`
	OIDCPrincipal    string        `name:"oidc-principal-claim" setting:"" default:"sub" placeholder:"CLAIM" help:"Claim that names the principal; a dot leads into an object."`
	OIDCGroups       string        `name:"oidc-groups-claim" setting:"" default:"groups" placeholder:"CLAIM" help:"Claim that lists its groups."`
	OIDCTenant       string        `name:"oidc-tenant-claim" setting:"" placeholder:"CLAIM" help:"Claim that names its tenant, or lists those that it may choose from, its own first."`
	OIDCPrefix       string        `name:"oidc-prefix" setting:"" placeholder:"TEXT" help:"Text to put before the names of principals and groups from tokens of the provider."`
	OIDCCA           string        `name:"oidc-ca" setting:"" unset:"the system's" type:"path" placeholder:"FILE" help:"Roots of the provider's certificate, as PEM."`
	SourceGrace      time.Duration `setting:"" default:"5m" placeholder:"DURATION" help:"If a file of tokens, rules, tenants or certificates cannot be read, the server keeps its last content for this time. Then it ends running calls and refuses new ones until it can read the file."`
	Insecure         bool          `setting:"" basic:"" help:"Listen beyond this machine without TLS or without authentication."`
}

// recordFlags define what callers may do, and which of it is recorded.
type recordFlags struct {
	Rules        string `setting:"" basic:"" unset:"all may do all" type:"path" placeholder:"FILE" help:"Rules of who may do what with which dataset; read again when the file changes."`
	Tenants      string `setting:"" unset:"callers name tenants, and all get the same" type:"path" placeholder:"FILE" help:"Tenants: who is in which, and what each gets; read again when the file changes."`
	Usage        string `setting:"" type:"path" placeholder:"DIR" help:"Directory for records of what tenants use, by day and dataset; see usage. One server at a time can use it."`
	UsageKeep    int    `setting:"" default:"400" placeholder:"DAYS" help:"For how many days that is kept."`
	Lineage      string `setting:"" type:"path" placeholder:"DIR" help:"Directory for records of the samples that jobs received, for example beside the spill; see lineage. One server at a time can use it."`
	LineageBytes size   `setting:"" default:"64MiB" placeholder:"SIZE" help:"How much of that is kept, the latest."`
	Audit        string `setting:"" type:"path" placeholder:"FILE" help:"File for the audit log of reads, writes and drops, as JSON lines. One server has it at a time."`
	AuditSize    size   `setting:"" default:"100MiB" placeholder:"SIZE" help:"How long that file may get before it is put aside as FILE.1, FILE.2 and so on."`
	AuditKeep    int    `setting:"" default:"0" unset:"all" placeholder:"N" help:"How many of those are kept, the newest."`
	AuditSync    bool   `setting:"" help:"Have the beginning of each read on stable storage before its first row is sent, and refuse reads that cannot be recorded."`
}

// spillFlags define the spill: its directory and size.
type spillFlags struct {
	Spill         string  `setting:"" basic:"" type:"path" placeholder:"DIR" help:"Directory on a disk of this machine for a cache of fetched samples. One server at a time can use it."`
	SpillBytes    portion `setting:"" basic:"" default:"30%" placeholder:"SIZE|SHARE%" help:"Most that it takes of the disk, index and dead space included: a size of 16MiB or more, or a share of the file system that DIR is on."`
	SpillMinBytes portion `setting:"" default:"auto" unset:"a tenth of --spill-bytes" placeholder:"SIZE|SHARE%" help:"Least size of the cache. The server shrinks the cache if the disk is needed, or if a larger cache saves no time."`
	SpillKeepFree size    `setting:"" default:"1GiB" placeholder:"SIZE" help:"Space on that file system that is left free."`
}

// clusterFlags make a server a node of a cluster.
type clusterFlags struct {
	Cluster         string        `setting:"" basic:"" placeholder:"NAME" help:"Be a node of this cluster, of all servers on the same store in Scylla or Cassandra that say so."`
	Node            string        `setting:"" unset:"the name of this machine" placeholder:"ID" help:"What the node is called; it stays so when it is started again."`
	Advertise       string        `setting:"" unset:"the address of --listen, which must be one of this machine's then" placeholder:"grpc://HOST:PORT" help:"Where clients and other nodes reach it."`
	Zone            string        `setting:"" unset:"all nodes are in one" placeholder:"NAME" help:"Where it is: a zone, a rack. Bytes between zones are expensive."`
	NodeRanks       int64         `setting:"" default:"1" placeholder:"N" help:"How many ranks run on this node. Its share of the samples is in proportion to this number."`
	ClusterKeyFile  string        `setting:"" type:"path" placeholder:"FILE" help:"File with a secret of 32 characters or more by which the nodes know each other. All nodes have the same file. Two secrets, one a line, are accepted while the secret changes. The server reads the file again when it changes. Without it, nodes read from each other only if all callers may read everything."`
	ClusterCA       string        `setting:"" name:"cluster-ca" unset:"the system's" type:"path" placeholder:"FILE" help:"Roots of the other nodes' certificates, as PEM."`
	PeerPlaintext   bool          `setting:"" help:"Read from other nodes with grpc:// addresses, although this node has a certificate. Such data can be read and changed on the way."`
	PeerEgress      size          `setting:"" default:"auto" unset:"any" placeholder:"SIZE" help:"How many bytes a second are sent to other nodes at most, fairly between the tenants that ask; what is more, they read from the store."`
	PeerEgressZones string        `setting:"" unset:"any" placeholder:"ZONE=SIZE,..." help:"The same limit for all nodes of a zone: b=100MB,c=1GB."`
	HandoverTimeout time.Duration `setting:"" default:"10m" placeholder:"DURATION" help:"How long a node that leaves by cluster drain sends its cache to other nodes. After SIGTERM the limit is nine tenths of --drain-timeout."`

	PeerProtocol int `hidden:"" help:"The only protocol to speak with other nodes, as another program would: for tests of upgrades."`
}

// localFlags share memory with clients on the server's machine.
type localFlags struct {
	Local           string   `setting:"" basic:"" type:"path" placeholder:"SOCKET" help:"Share memory with clients on this machine, by a socket of that name: they get blobs without a copy through TCP."`
	LocalMode       string   `setting:"" default:"0600" placeholder:"MODE" help:"Permissions of that socket, as of a file. 0600 is the server's own user."`
	LocalUID        []uint32 `setting:"" name:"local-uid" unset:"all" placeholder:"UID" help:"Users who may connect, among those whom --local-mode permits."`
	LocalRing       size     `setting:"" default:"64MiB" placeholder:"SIZE" help:"Memory for each stream of such a client."`
	LocalMemory     size     `setting:"" default:"1GiB" placeholder:"SIZE" help:"Memory for all of them together; later streams are served by TCP. One user may have all of it, or half where --local-mode lets others than the server's user connect."`
	LocalReferences bool     `setting:"" help:"Let such clients that ask for it read blobs in place, in the files of the spill or of an embedded store, without any copy. They can read all of those files: not with --rules or --tenants."`
	LocalPinned     size     `setting:"" default:"auto" unset:"a quarter of the spill, and 1GiB at most" placeholder:"SIZE" help:"Size of blobs that streams may protect from eviction while clients use them. Each stream has a quarter of it. Other blobs are copied."`
}

// observeFlags define the admin listener, and where traces go.
type observeFlags struct {
	Admin          string  `setting:"" basic:"" placeholder:"HOST:PORT" help:"Address of a listener of its own for /console/, /metrics, /healthz, /readyz and /debug/pprof. Without a token, keep it to this machine."`
	AdminCert      string  `setting:"" type:"path" placeholder:"FILE" help:"Certificate that the admin listener presents, in PEM; read again when it is replaced."`
	AdminKey       string  `setting:"" type:"path" placeholder:"FILE" help:"Key of --admin-cert."`
	AdminTokenFile string  `setting:"" unset:"what BOWSTRING_ADMIN_TOKEN says, which is no setting" type:"path" placeholder:"FILE" help:"File with the token that /metrics and profiles take, read again when it is replaced."`
	AdminHost      string  `setting:"" placeholder:"NAMES" help:"Host names, separated by commas, that requests to the admin listener may have if it has no token. Addresses, localhost and the machine's name are always allowed."`
	NoConsole      bool    `setting:"" help:"Serve no console at --admin."`
	OTLPEndpoint   string  `setting:"" name:"otlp-endpoint" unset:"what OTEL_EXPORTER_OTLP_ENDPOINT says" placeholder:"URL" help:"Collector of OpenTelemetry traces by OTLP over gRPC, such as http://localhost:4317."`
	TraceRatio     float64 `setting:"" default:"0.01" placeholder:"SHARE" help:"Share of calls to trace if their callers do not trace, from 0 to 1. If it is not set, OTEL_TRACES_SAMPLER decides."`
}

// units explain the placeholders of settings whose values are more than a name.
var units = []struct{ placeholder, means string }{
	{"SIZE", "bytes with a unit, such as 512MiB or 4GB"},
	{"DURATION", "a time with a unit, such as 30s or 5m"},
	{"SHARE%", "a percentage, such as 30%"},
	{"SHARE", "a fraction of 1, such as 0.01"},
	{"N", "a number"},
}

// defaultOf returns the value of a setting that is not set, for people.
func defaultOf(f *kong.Flag) string {
	unset := f.Tag.Get("unset")
	switch {
	case unset != "" && f.Default == "auto":
		return "auto: " + unset
	case unset != "":
		return unset
	case f.Default != "":
		return f.Default
	case f.IsBool():
		return "false"
	}
	return "none"
}

// helpOf returns the help of a flag. For a setting of serve it appends the default.
func helpOf(v *kong.Value) string {
	if v.Flag == nil || v.Flag.Group == nil && !v.Tag.Has("basic") || !v.Tag.Has("setting") {
		return kong.DefaultHelpValueFormatter(v)
	}
	about := *v
	about.Help = strings.TrimSuffix(v.Help, ".") + " (default: " + defaultOf(v.Flag) + ")."
	return kong.DefaultHelpValueFormatter(&about)
}

// helpOptions define the layout of the help.
var helpOptions = kong.HelpOptions{Compact: true, WrapUpperBound: 100, NoExpandSubcommands: true, ValueFormatter: helpOf}

// printHelp prints the help. For serve it hides all settings that are not tagged basic:
// their number would hide the few that most people need. --help-all shows them.
func printHelp(options kong.HelpOptions, ctx *kong.Context) error {
	more := 0
	if node := ctx.Selected(); node != nil {
		for _, f := range node.Flags {
			if f.Tag.Has("setting") {
				if f.Hidden = !f.Tag.Has("basic"); f.Hidden {
					more++
				}
				f.Group = nil
			}
		}
	}
	for _, f := range ctx.Model.Flags {
		f.Hidden = f.Hidden || more > 0 && f.Tag.Has("client") // flags of clients, which serve is not
	}
	err := kong.DefaultHelpPrinter(options, ctx)
	if err == nil && more > 0 {
		_, err = fmt.Fprintf(ctx.Stdout, "\n%d more flags are in %s --help-all. Each is a setting of the configuration file, "+
			"too:\nsee config template.\n", more, ctx.Selected().FullPath())
	}
	return err
}

// helpAll is the flag --help-all. Its hook prints the help and ends the process.
type helpAll bool

// BeforeReset is called by kong before it checks for missing arguments.
func (helpAll) BeforeReset(ctx *kong.Context) error {
	err := kong.DefaultHelpPrinter(helpOptions, ctx)
	ctx.Exit(0)
	return err
}

// ConfigTemplateCmd is bowstring config template.
type ConfigTemplateCmd struct{}

// Run prints the template.
func (c *ConfigTemplateCmd) Run(app *App) error {
	text, err := template(app.settings)
	if err != nil {
		return err
	}
	_, err = app.Stdout.Write(text)
	return err
}

// template returns a configuration file with every setting, its unit and its default, all
// of them as comments. A user removes the # of what to change; the rest keeps following
// the program's defaults.
func template(s settings) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("# Every setting, with its default. A line counts without its #. Relative paths are relative to this file.\n")
	b.WriteString("# The command line stands above the environment, the environment above this file.\n#\n")
	for _, u := range units {
		fmt.Fprintf(&b, "# %-8s is %s.\n", u.placeholder, u.means)
	}
	// Settings of a command are in a section of its name. Those of Globals come first and
	// have none.
	section, group := "", ""
	for _, key := range s.keys {
		f, indent := s.known[key], ""
		if i := strings.LastIndexByte(key, '.'); i >= 0 {
			indent = "  "
			if key[:i] != section {
				section = key[:i]
				fmt.Fprintf(&b, "\n%s:", section)
			}
		}
		if f.Group != nil && f.Group.Title != group {
			group = f.Group.Title
			fmt.Fprintf(&b, "\n%s## %s\n", indent, group)
		}
		b.WriteString("\n")
		for _, line := range wrapped(f.Help, 100) {
			fmt.Fprintf(&b, "%s# %s\n", indent, line)
		}
		value, err := yaml.Marshal(defaultValue(f))
		if err != nil {
			return nil, err
		}
		unit := ""
		if f.PlaceHolder != "" {
			unit = f.PlaceHolder + "; "
		}
		line := fmt.Sprintf("%s# %s: %s", indent, f.Name, bytes.TrimSpace(value))
		fmt.Fprintf(&b, "%-40s # %sdefault: %s\n", line, unit, defaultOf(f))
	}
	return b.Bytes(), nil
}

// defaultValue returns the default of a setting for the YAML encoder. A string gets
// quotation marks where YAML needs them.
func defaultValue(f *kong.Flag) any {
	switch f.Target.Kind() {
	case reflect.Bool:
		return f.Default == "true"
	case reflect.Slice:
		return []string{}
	case reflect.String:
		return f.Default
	}
	return yamlPlain(f.Default)
}

// yamlPlain returns a number or word that YAML writes without quotation marks.
func yamlPlain(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Value: text}
}

// wrapped splits a text into lines of at most width characters. A longer word has a line
// of its own.
func wrapped(text string, width int) (lines []string) {
	for _, word := range strings.Fields(text) {
		if n := len(lines); n > 0 && len(lines[n-1])+1+len(word) <= width {
			lines[n-1] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}
