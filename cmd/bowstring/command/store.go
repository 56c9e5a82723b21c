package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/sys/unix"

	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/fetch/store/bucket"
	"bowstring/fetch/store/cql"
	"bowstring/fetch/store/extent"
	"bowstring/fetch/store/local"
	"bowstring/schema"
	"bowstring/spill"
)

// StoreCmd is bowstring store.
type StoreCmd struct {
	Init    StoreInitCmd    `cmd:"" help:"Make the store: its directory, its keyspace and tables, or its place in a bucket."`
	Rebuild StoreRebuildCmd `cmd:"" help:"Make the database of a store in a directory, or the catalog of one in a bucket, anew from what else there is."`
}

// StoreInitCmd is bowstring store init.
type StoreInitCmd struct {
	// Replication is of a keyspace, and Endpoint of a bucket. Run rejects them for other
	// stores.
	Replication string   `placeholder:"N|DC=N,…" help:"Replicas of a keyspace that is yet to be made: a number, in the datacenter that the address prefers, or one for each datacenter. Asked for on a terminal."`
	Endpoint    []string `placeholder:"URL" sep:"none" help:"A further endpoint of the bucket, as http://HOST:PORT. That it keeps conditional writes is proven over all of them together. May be given several times."`
}

// Help is shown below the summary.
func (*StoreInitCmd) Help() string {
	return `A store that is there stays as it is. It may be interrupted, and run again.
A bucket has to prove first that it keeps conditional writes, by which a store commits: writers change one object at the
same time, and no write that the bucket has confirmed may be missing. A bucket that loses an update is refused.`
}

// Run creates the store that the flags name. An existing store stays as it is. Flags of
// another kind of store are errors.
func (c *StoreInitCmd) Run(ctx context.Context, app *App) error {
	addr, err := app.ownStore("store init")
	if err != nil {
		return err
	}
	if len(c.Endpoint) > 0 && !bucket.IsURL(addr) {
		return usagef("--endpoint is of a bucket (--store s3://BUCKET/PREFIX), not of %s", addr)
	}
	if cql.IsURI(addr) {
		err = c.initKeyspace(ctx, app, addr)
	} else if bucket.IsURL(addr) && c.Replication == "" {
		err = c.initBucket(ctx, app, addr)
	} else if c.Replication != "" {
		return usagef("--replication is of a keyspace (--store cql://HOST/KEYSPACE), and %s is none", addr)
	} else {
		var made store.Store
		if made, err = openStore(ctx, addr, true, app.quietLog()); err == nil {
			err = made.Close()
		}
	}
	if err == nil {
		app.Notef("store %s is ready", addr)
	}
	return err
}

// initBucket creates a store in a bucket. bucket.Init first proves that the bucket keeps
// conditional writes, and the result is printed.
func (c *StoreInitCmd) initBucket(ctx context.Context, app *App, addr string) error {
	// An existing store needs no proof again, so that Changes is 0.
	proof, err := bucket.Init(ctx, addr, bucket.InitOptions{
		Options: bucket.Options{Logger: app.quietLog()}, Endpoints: c.Endpoint,
	})
	if err == nil && proof.Changes > 0 {
		app.Notef("the bucket keeps conditional writes: %d changes and %d creations by writers at the same time, none lost",
			proof.Changes, proof.Creations)
	}
	return err
}

// initKeyspace creates a store in a keyspace. If the keyspace does not exist and no
// replication is given, it asks on a terminal, and otherwise returns the error. A default
// would be wrong for a cluster of another size.
func (c *StoreInitCmd) initKeyspace(ctx context.Context, app *App, addr string) error {
	options := cql.InitOptions{Logger: app.quietLog()}
	text := c.Replication
	// The loop asks again only if the keyspace still lacks a replication.
	for {
		if text != "" {
			var err error
			if options.Replication, err = cql.ParseReplication(text); err != nil {
				return err
			}
		}
		err := cql.Init(ctx, addr, options)
		var missing *cql.NoReplicationError
		if !errors.As(err, &missing) || !app.Interactive {
			return err
		}
		question := fmt.Sprintf("How many replicas is keyspace %s to have? A number, or DC=N,… (nodes now: %s)",
			missing.Keyspace, missing.Now())
		if text, err = app.ask(ctx, question); err != nil {
			return err
		}
		if text == "" {
			return missing
		}
	}
}

// ownStore returns the address of the store, for a command that works on it directly.
func (a *App) ownStore(command string) (string, error) {
	if a.globals.Store == "" {
		return "", usagef("%s works on a store, not through a server: name it by --store", command)
	}
	return a.globals.Store, nil
}

// IsRemote reports whether the address of a store is not a directory: a store in Scylla
// or Cassandra, or in a bucket.
func IsRemote(addr string) bool { return cql.IsURI(addr) || bucket.IsURL(addr) }

// openStore opens the store at addr. It is a directory, or an address in Scylla or
// Cassandra or in a bucket. Stores of the latter kinds are only created by store init.
// Without create, a directory without a store is an error, so that a misspelled name does
// not create one. openStore returns when ctx ends.
func openStore(ctx context.Context, addr string, create bool, log *slog.Logger) (store.Store, error) {
	return openFarStore(ctx, addr, create, nil, readBuckets{requests: object.NewRequests(object.RequestsOptions{})}, log)
}

// Far delays the traffic with a store, as if it were far away, and may have another clock
// than the machine. Its methods are safe for concurrent use.
type Far interface {
	// DialContext makes a connection to a store that is reached over a network.
	DialContext(ctx context.Context, network, addr string) (net.Conn, error)
	// Store wraps a store in a directory.
	Store(near store.Store) store.Store
	// Now returns the time that the process has for the leases of a store that is reached
	// over a network.
	Now() time.Time
}

// readBuckets configures the reads of buckets with attached samples.
type readBuckets struct {
	requests *object.Requests // counts and limits the requests
	allowed  bucketList       // the buckets that may be read
	rights   bucketRights     // their credentials
	serves   bool             // many reads of the store follow
}

// bucketList names buckets by their URLs, or by beginnings of URLs followed by a star. A
// nil list names all.
type bucketList []string

// parseBuckets parses a list that is separated by commas. It returns nil for an empty
// one.
func parseBuckets(text string) (list bucketList, err error) {
	for url := range strings.SplitSeq(text, ",") {
		if url = strings.TrimSpace(url); url == "" {
			continue
		}
		if !strings.Contains(url, "://") {
			return nil, fmt.Errorf("%q is no URL of a bucket: want one as s3://photos, or s3://team-* for all that begin so", url)
		}
		list = append(list, url)
	}
	return list, nil
}

// check returns an error that wraps schema.ErrDenied for a bucket that is not in the
// list.
func (l bucketList) check(url string) error {
	named := func(one string) bool {
		begins, all := strings.CutSuffix(one, "*")
		return one == url || all && strings.HasPrefix(url, begins)
	}
	if l == nil || slices.ContainsFunc(l, named) {
		return nil
	}
	return fmt.Errorf("%w: this server reads no bucket %s: --buckets allows %s", schema.ErrDenied, url, strings.Join(l, ", "))
}

// openFarStore opens a store as openStore does. If far is not nil, it delays the traffic
// with the store and with buckets of attached data. A store that wraps the result of
// openBelow reads the blobs of attached data.
func openFarStore(ctx context.Context, addr string, create bool, far Far, buckets readBuckets,
	log *slog.Logger) (store.Store, error) {
	options := object.Options{Requests: buckets.requests}
	if far != nil {
		options.Dial = far.DialContext
	}
	// The store's own bucket may have an entry in the file of credentials. It is not
	// limited by --buckets, which is about attached data.
	own := options
	if bucket.IsURL(addr) {
		url, _, err := object.SplitURL(addr)
		if err == nil {
			own, err = buckets.rights.options(url, options)
		}
		if err != nil {
			return nil, err
		}
	}
	below, err := openBelow(ctx, addr, create, far, own, buckets.serves, log)
	if err != nil {
		return nil, err
	}
	return extent.New(below, extent.Options{Logger: log, Buckets: func(ctx context.Context, url string) (object.Bucket, error) {
		if err := buckets.allowed.check(url); err != nil {
			return nil, err
		}
		by, err := buckets.rights.options(url, options)
		if err != nil {
			return nil, err
		}
		return object.Open(ctx, url, by)
	}}), nil
}

// connectionsReady is how many connections to a store in a bucket a server makes when it starts. The reads of a first
// batch need about as many.
const connectionsReady = 16

// openBelow opens the store without the blobs in attached buckets. A store that serves makes connections in advance.
func openBelow(ctx context.Context, addr string, create bool, far Far, buckets object.Options, serves bool,
	log *slog.Logger) (store.Store, error) {
	if cql.IsURI(addr) {
		options := cql.Options{Logger: log}
		if far != nil {
			options.Dialer, options.Clock = far, far.Now
		}
		return cql.Open(ctx, addr, options)
	}
	if bucket.IsURL(addr) {
		options := bucket.Options{Logger: log, Bucket: buckets}
		if serves {
			options.Connections = connectionsReady
		}
		if far != nil {
			options.Clock = far.Now
		}
		return bucket.Open(ctx, addr, options)
	}
	// local.Open would create a store in an empty directory.
	if !create {
		// A directory that does not exist has no entries, and is an error below.
		entries, err := os.ReadDir(addr)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("store: %w", err)
		}
		if len(entries) == 0 {
			return nil, fmt.Errorf("%w: there is no store in %s; import or serve makes one, --store names another",
				schema.ErrNotFound, addr)
		}
	}
	store, err := openDirectory(addr, log)
	if err != nil {
		return nil, err
	}
	if far != nil {
		return far.Store(store), nil
	}
	return store, nil
}

// openDirectory opens a store in a directory. If its database is damaged, it opens the
// store for reading, as far as the segments allow. An operator can then still export
// data.
func openDirectory(dir string, log *slog.Logger) (*local.Store, error) {
	store, err := local.Open(dir, local.Options{Logger: log})
	if !errors.Is(err, schema.ErrDataLoss) {
		return store, err
	}
	log.Warn("the store's database is damaged: what is in the segments is looked up, and can be read; nothing "+
		"can be changed",
		"store", dir, "error", message(err))
	store, again := local.OpenDamaged(context.Background(), dir, local.Options{Logger: log})
	if again != nil {
		return nil, err
	}
	return store, nil
}

// mapStore parses the flag --store. The address of a remote store stays as it is.
// Anything else is a path, and ~ is expanded.
func mapStore(ctx *kong.DecodeContext, target reflect.Value) error {
	var s string
	if err := ctx.Scan.PopValueInto("store", &s); err != nil {
		return err
	}
	if s != "" && !IsRemote(s) {
		s = kong.ExpandPath(s)
	}
	target.SetString(s)
	return nil
}

// StoreRebuildCmd is bowstring store rebuild.
type StoreRebuildCmd struct {
	Dir      string `arg:"" optional:"" type:"store" help:"Directory of the store, or its URL in a bucket, if not the one that --store names."`
	Payloads bool   `help:"Also read every blob and leave out what differs from its checksum."`
	Lossy    bool   `help:"If both copies of the catalog are damaged, keep what can be read of them."`
	JSON     bool   `name:"json" help:"Print a JSON object."`
}

// Run rebuilds the database of a store from its segments. It returns an error if
// snapshots lack blobs afterwards, although the rebuild itself succeeded.
func (c *StoreRebuildCmd) Run(ctx context.Context, app *App) error {
	dir := c.Dir
	if dir == "" {
		var err error
		if dir, err = app.ownStore("store rebuild"); err != nil {
			return err
		}
	}
	if cql.IsURI(dir) {
		return usagef("store rebuild works on a store in a directory or in a bucket, and %s is in a database of its own", dir)
	}
	if bucket.IsURL(dir) {
		return c.rebuildBucket(ctx, app, dir)
	}
	bar := app.progress("", -1, "bytes")
	defer func() { _ = bar.Exit() }()
	report, err := local.Rebuild(ctx, dir, local.RebuildOptions{
		Logger: app.Log, Payloads: c.Payloads, Lossy: c.Lossy,
		Progress: func(p local.RebuildProgress) { drawSegments(bar, p.Segments, p.OfSegments, p.Bytes, p.OfBytes) },
	})
	if err != nil {
		return err
	}
	_ = bar.Finish()
	if c.JSON {
		if err := printJSON(app.Stdout, report); err != nil {
			return err
		}
	} else if err := c.print(app, dir, report); err != nil {
		return err
	}
	if len(report.Missing) > 0 {
		return fmt.Errorf("%w: %s miss blobs; all else is there again", schema.ErrDataLoss,
			plural(int64(len(report.Missing)), "snapshot"))
	}
	return nil
}

// drawSegments shows the progress of a rebuild.
func drawSegments(bar *progressbar.ProgressBar, segments, ofSegments int, bytes, ofBytes int64) {
	bar.Describe(fmt.Sprintf("segment %d of %d", segments, ofSegments))
	bar.ChangeMax64(ofBytes)
	_ = bar.Set64(bytes) // an error of the bar is no reason to fail
}

// rebuildBucket rebuilds the catalog of a store in a bucket.
func (c *StoreRebuildCmd) rebuildBucket(ctx context.Context, app *App, addr string) error {
	if c.Lossy {
		return usagef("--lossy is of a store in a directory: one in a bucket keeps in any case what can be read")
	}
	bar := app.progress("", -1, "bytes")
	defer func() { _ = bar.Exit() }()
	report, err := bucket.Rebuild(ctx, addr, bucket.RebuildOptions{
		Options: bucket.Options{Logger: app.Log}, Payloads: c.Payloads,
		Progress: func(p bucket.RebuildProgress) { drawSegments(bar, p.Segments, p.OfSegments, p.Bytes, p.OfBytes) },
	})
	if err != nil {
		return err
	}
	_ = bar.Finish()
	if c.JSON {
		err = printJSON(app.Stdout, report)
	} else {
		err = c.printBucket(app, report)
	}
	if err == nil && len(report.Missing) > 0 {
		err = fmt.Errorf("%w: %s miss segments; all else is there", schema.ErrDataLoss,
			plural(int64(len(report.Missing)), "snapshot"))
	}
	return err
}

// printBucket prints what a rebuild in a bucket found, and where each catalog came from.
func (c *StoreRebuildCmd) printBucket(app *App, r bucket.RebuildReport) error {
	err := app.Printf("looked at %s: %s in %s; the catalog of %s was made anew\n", r.Store, humanize.IBytes(uint64(r.Bytes)),
		plural(int64(r.Segments), "segment"), plural(int64(len(r.Datasets)), "dataset"))
	for _, d := range r.Datasets {
		if err == nil {
			err = app.Printf("rebuilt: %s: %s, from %s\n", d.Dataset, plural(int64(d.Snapshots), "snapshot"),
				map[string]string{"copy": "the copy of its catalog", "records": "the records in segments: tags and selections are gone, and numbers may differ"}[d.From])
		}
	}
	for _, d := range r.Damage {
		if err == nil {
			err = app.Printf("damaged: %s\n", d)
		}
	}
	for _, m := range r.Missing {
		if err == nil {
			err = app.Printf("missing: %s@%d: segments %s\n", m.Dataset, m.Snapshot, strings.Join(m.Segments, ", "))
		}
	}
	return err
}

// print prints what a rebuild in a directory found.
func (c *StoreRebuildCmd) print(app *App, dir string, r local.RebuildReport) error {
	err := app.Printf("rebuilt %s: %s, from the %s; %s of %s in %s\n", dir, plural(int64(r.Snapshots), "snapshot"),
		r.Catalog,
		plural(r.Blobs, "blob"), humanize.IBytes(uint64(r.Bytes)), plural(int64(r.Segments), "segment"))
	if err != nil {
		return err
	}
	for _, d := range r.Damage {
		if err := app.Printf("damaged: %s\n", d); err != nil {
			return err
		}
	}
	for _, m := range r.Missing {
		if err := app.Printf("missing: %s@%d: %s, and %s of its manifest\n", m.Dataset, m.Snapshot,
			plural(m.Blobs, "blob"), plural(m.Chunks, "chunk")); err != nil {
			return err
		}
	}
	return nil
}

// openIdleSpill opens a spill that no server uses. The budget is so large that nothing is
// evicted. The file FORMAT is checked first, because spill.Open would create a spill.
func openIdleSpill(dir string, log *slog.Logger) (*spill.Cache, error) {
	if _, err := os.Stat(filepath.Join(dir, "FORMAT")); err != nil {
		return nil, fmt.Errorf("%w: there is no spill in %s", schema.ErrNotFound, dir)
	}
	return spill.Open(spill.Options{Dir: dir, Bytes: 1 << 60, KeepFree: 1, Logger: log})
}

// lowestPriority makes the process run only when no other one needs the CPU. Linux has
// the priority by thread, and new threads inherit it from the thread that creates them.
// Errors are ignored: without the priority the command works too.
func lowestPriority() {
	// Other systems than Linux lack /proc, and keep the normal priority.
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads {
		if id, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, 19) // see above
		}
	}
}
