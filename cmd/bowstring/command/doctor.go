package command

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"bowstring/fetch/store"
	"bowstring/fetch/store/bucket"
	"bowstring/fetch/store/cql"
	"bowstring/fetch/store/local"
	"bowstring/flight/policy"
)

// DoctorCmd is bowstring doctor.
type DoctorCmd struct {
	Address string `arg:"" optional:"" name:"store" type:"store" placeholder:"DIR" help:"Store to look at, as --store names it (default: that one)."`
	JSON    bool   `name:"json" help:"Print a JSON object."`
	Support string `type:"path" placeholder:"FILE" help:"Write an archive (.tar.gz) for a bug report, without secrets, and say what it holds. It has the findings, too."`
	Log     string `type:"path" placeholder:"FILE" help:"With --support, log of the server, whose last mebibyte is added; - for the standard input."`
}

// Help says what is looked at.
func (*DoctorCmd) Help() string {
	return `Looks at what a store stands on and at this machine, changes nothing, and prints a line for each thing: ok, a warning, or a problem, and what to do.
In Scylla or Cassandra: nodes, versions, clocks, latencies, replication, tables' settings, tablets, transactions and rights. In a directory: the
file system, its free space, fsync, rights, the index and the segments. Of this machine: limits of files and memory, windows of TCP, and what serve is
configured with: the spill's disk, certificates near their end, rules, the audit log's disk. The exit status is 1 if there is a problem.
With --support it writes all that a bug report needs to an archive, without secrets, and the exit status is 0.`
}

// Run prints all findings, and returns an error if one of them is a problem.
func (c *DoctorCmd) Run(ctx context.Context, app *App) error {
	if c.Support != "" {
		return c.writeSupport(ctx, app)
	}
	// An argument may name a store that serve does not use.
	addr := c.Address
	if addr == "" {
		var err error
		if addr, err = app.ownStore("doctor"); err != nil {
			return err
		}
	}
	// The store's findings come first, and the machine's after them.
	found, err := examine(ctx, addr, app.quietLog())
	if err != nil {
		return err
	}
	// The settings are those of serve, whatever store is examined.
	here, err := thisSetup(app)
	if err != nil {
		return err
	}
	below := len(found)
	found = append(found, here.examine()...)
	if c.JSON {
		err = printJSON(app.Stdout, struct {
			// Worst is the most severe level of the findings, for scripts.
			Store    string         `json:"store"`
			Worst    string         `json:"worst"`
			Findings store.Findings `json:"findings"`
		}{addr, found.Worst(), found})
	} else {
		err = printFindings(app, found)
	}
	if err != nil {
		return err
	}
	return judge(addr, found[:below], found[below:])
}

// judge returns an error with the number of problems in the store and on this machine,
// and nil if there are none. Warnings do not fail the command.
func judge(addr string, below, here store.Findings) error {
	var places []string
	// Problems of the store and of the machine are counted separately.
	for _, at := range []struct {
		place string
		found store.Findings
	}{{"in " + addr, below}, {"on this machine", here}} {
		problems := int64(0)
		for _, f := range at.found {
			if f.Level == store.LevelProblem {
				problems++
			}
		}
		if problems > 0 {
			places = append(places, plural(problems, "problem")+" "+at.place)
		}
	}
	if len(places) == 0 {
		return nil
	}
	return errors.New(strings.Join(places, ", "))
}

// examine examines a store of any kind.
func examine(ctx context.Context, addr string, log *slog.Logger) (store.Findings, error) {
	if cql.IsURI(addr) {
		return cql.Examine(ctx, addr, cql.Options{Logger: log})
	}
	if bucket.IsURL(addr) {
		return bucket.Examine(ctx, addr, bucket.Options{Logger: log})
	}
	return local.Examine(addr, false), nil
}

func printFindings(app *App, found store.Findings) error {
	var out table
	for _, f := range found {
		says := f.Says
		if f.Do != "" {
			says += ". To do: " + f.Do
		}
		out.add(f.Level, f.Check, says)
	}
	return out.print(app.Stdout)
}

// logProblems logs, at a server's start, problems of its machine and store, as far as a
// few small reads show them. It logs no warnings; bowstring doctor shows them.
func logProblems(ctx context.Context, app *App, dir string, served store.Store) {
	var found store.Findings
	// A store with its own check is remote; a directory is checked from outside.
	if far, ok := store.As[interface {
		Examine(ctx context.Context) store.Findings
	}](served); ok {
		// The store is open, so that its own check costs a few queries only.
		found = far.Examine(ctx)
	} else if !IsRemote(dir) {
		found = local.Examine(dir, true)
	}
	if ctx.Err() != nil {
		return // the reads failed because the start was cancelled
	}
	for _, f := range found {
		if f.Level == store.LevelProblem {
			app.Log.WarnContext(ctx, "the store has a problem; bowstring doctor says more", "check", f.Check, "problem",
				f.Says, "do", f.Do)
		}
	}
}

// setup is this machine and the settings of serve on it, as far as doctor checks them.
// Only the checks of one command use it.
type setup struct {
	// root and now are fixed by tests, so that a check has one result.
	root  string // the folder of /proc and /sys: "/" except in tests
	now   time.Time
	files uint64 // that the process may have open at once

	memory, window     int64 // memory of the process, and of windows, in bytes; 0 if unknown
	spill              string
	keepFree           int64
	connections        int
	certificates       map[string]string // files by the setting that names them
	rules, auditFolder string
}

// The names of the checks, as --json prints them.
const (
	checkFiles       = "open files"
	checkWindows     = "tcp windows"
	checkMemory      = "memory"
	checkSpill       = "spill"
	checkSpillSpace  = "spill space"
	checkCertificate = "certificate"
	checkRules       = "rules"
	checkAudit       = "audit"
)

// certificateSoon is how long before its end a certificate is worth a warning: that of the alert
// BowstringCertificateEnds.
const certificateSoon = 14 * 24 * time.Hour

// thisSetup reads the settings of serve on this machine, by the same rules as serve:
// flags, environment and configuration file. A setting that cannot be read counts as not
// set, because the configuration has been checked before.
func thisSetup(app *App) (*setup, error) {
	s := &setup{root: "/", now: time.Now(), memory: memoryLimit(), certificates: map[string]string{}}
	// The limit is that of this process. A service may have another one, by its unit.
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nil, fmt.Errorf("limit of open files: %w", err)
	}
	s.files = limit.Cur
	text := app.settings.text
	for _, key := range []string{"serve.tls-cert", "serve.tls-client-ca", "serve.admin-cert"} {
		if path := text(key); path != "" {
			s.certificates[key] = path
		}
	}
	s.rules, s.spill = text("serve.rules"), text("serve.spill")
	if audit := text("serve.audit"); audit != "" {
		s.auditFolder = filepath.Dir(audit)
	}
	// "auto" and an empty setting are 0: unknown.
	number := func(key string) int64 {
		var n size
		if n.UnmarshalText([]byte(text(key))) != nil {
			return 0
		}
		return int64(n)
	}
	s.keepFree, s.window = number("serve.spill-keep-free"), number("serve.window-memory")
	// It is an int, and not a size.
	if value, err := app.settings.effective("serve.max-streams"); err == nil {
		streams, _ := value.(int)
		s.connections = connectionsFor(streams)
	}
	return s, nil
}

// examine runs all checks that the settings call for.
func (s *setup) examine() (f store.Findings) {
	s.checkFiles(&f)
	s.checkWindows(&f)
	// The other half is for the heap, uploads and evaluation.
	if s.memory > 0 && s.window > s.memory/2 {
		f.Warning(checkMemory, "lower serve.window-memory to a quarter of it, or raise the limit of the control group",
			"windows may take %s of the %s that the process may use", humanize.IBytes(uint64(s.window)),
			humanize.IBytes(uint64(s.memory)))
	} else if s.memory > 0 {
		f.OK(checkMemory, "the process may use %s", humanize.IBytes(uint64(s.memory)))
	}
	if s.spill != "" {
		s.checkSpill(&f)
	}
	for _, key := range []string{"serve.tls-cert", "serve.tls-client-ca", "serve.admin-cert"} {
		if path := s.certificates[key]; path != "" {
			s.checkCertificate(&f, key, path)
		}
	}
	if s.rules != "" {
		s.checkRules(&f)
	}
	if s.auditFolder != "" {
		s.checkAudit(&f)
	}
	return f
}

// checkFiles compares the limit of open files with the need of a full server: its
// connections, and 1,024 for connections to the store and segments.
func (s *setup) checkFiles(f *store.Findings) {
	need := uint64(s.connections) + 1024
	switch {
	// 1,024 is what a server needs besides its connections.
	case s.files < 1024:
		f.Problem(checkFiles, "ulimit -n 65536, or LimitNOFILE=65536 in the unit", "the process may have %d files open",
			s.files)
	case s.files < need:
		f.Warning(checkFiles, "ulimit -n 65536, or LimitNOFILE=65536 in the unit; or lower serve.max-streams",
			"the process may have %d files open, and %d connections with what is below them take up to %d", s.files,
			s.connections, need)
	default:
		f.OK(checkFiles, "the process may have %d open", s.files)
	}
}

// windowLow is the TCP window below which one connection cannot carry 1 Gbit/s over 30
// ms: 125 MB/s times 0.03 s is 3.75 MB.
const windowLow = 4 << 20

// checkWindows checks how many bytes of a connection may be unacknowledged. The kernel's
// limit bounds the throughput of a connection over a link with latency.
func (s *setup) checkWindows(f *store.Findings) {
	if text, err := s.read("proc/sys/net/ipv4/tcp_window_scaling"); err == nil && text == "0" {
		f.Problem(checkWindows, "sysctl -w net.ipv4.tcp_window_scaling=1",
			"windows are not scaled: a connection carries 64 KiB a round trip")
		return
	}
	for _, name := range []string{"tcp_rmem", "tcp_wmem"} {
		text, err := s.read("proc/sys/net/ipv4/" + name)
		fields := strings.Fields(text)
		if err != nil || len(fields) != 3 {
			continue // not Linux, or a container that hides it
		}
		// The three fields are the least, the default and the largest window in bytes.
		most, err := strconv.ParseInt(fields[2], 10, 64)
		if err != nil {
			continue
		}
		// A window each 100 ms is ten a second.
		at := humanize.Bytes(uint64(most)*10) + "/s over 100 ms"
		if most < windowLow {
			f.Warning(checkWindows, fmt.Sprintf("sysctl -w net.ipv4.%s='%s %s 16777216'", name, fields[0], fields[1]),
				"%s lets a connection have %s on its way, %s", name, humanize.IBytes(uint64(most)), at)
		} else {
			f.OK(checkWindows, "%s: up to %s a connection, %s", name, humanize.IBytes(uint64(most)), at)
		}
	}
}

// read reads a file below root, without spaces at its ends.
func (s *setup) read(path string) (string, error) {
	data, err := os.ReadFile(filepath.Join(s.root, path))
	return strings.TrimSpace(string(data)), err
}

// notForSpill are the file systems on which a spill gains nothing, or is not what it
// seems.
var notForSpill = map[int64]string{
	unix.TMPFS_MAGIC: "tmpfs, which is memory: blobs would be there twice, and count as the process's",
	unix.RAMFS_MAGIC: "ramfs, which is memory",
	unix.OVERLAYFS_SUPER_MAGIC: "an overlay, the container's own layer: it goes with the container, and is " +
		"slow to write",
	unix.NFS_SUPER_MAGIC:  "NFS, no disk of this machine",
	unix.SMB2_SUPER_MAGIC: "SMB, no disk of this machine",
	unix.CIFS_SUPER_MAGIC: "SMB, no disk of this machine",
	unix.CEPH_SUPER_MAGIC: "CephFS, no disk of this machine",
	unix.FUSE_SUPER_MAGIC: "FUSE, which copies each page once more",
	unix.V9FS_MAGIC:       "9p, no disk of this machine",
}

// checkSpill checks the disk of the spill. If the directory does not exist yet, it checks
// the nearest parent that does, because the server will create the directory.
func (s *setup) checkSpill(f *store.Findings) {
	dir := s.spill
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			f.Problem(checkSpill, "give the server's user the directory, or name another by serve.spill", "%s: %v", dir,
				err)
			return
		}
		dir = filepath.Dir(dir)
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		f.Problem(checkSpill, "give the directory to the server's user", "this user may not write to %s", dir)
		return
	}
	// Statfs has the type of the file system as a magic number.
	kind, wrong := notForSpill[int64(st.Type)] //nolint:unconvert // 32 bits on some processors
	switch {
	case wrong:
		f.Warning(checkSpill, "name a directory on a disk of this machine by serve.spill", "%s is on %s", s.spill, kind)
	// This is no warning, because virtual disks claim to rotate, too.
	case s.spins(dir):
		f.OK(checkSpill, "%s is on a disk of this machine, which the kernel takes for one that spins: "+
			"shuffled reads want a solid-state one", s.spill)
	default:
		f.OK(checkSpill, "%s is on a disk of this machine", s.spill)
	}
	// Bavail is what users other than root may use.
	free := int64(st.Bavail) * st.Bsize
	says := fmt.Sprintf("%s of %s free", humanize.IBytes(uint64(free)), humanize.IBytes(st.Blocks*uint64(st.Bsize)))
	if free < s.keepFree {
		f.Warning(checkSpillSpace, "free some, or lower serve.spill-keep-free: nothing is stored meanwhile",
			"%s, less than serve.spill-keep-free (%s)", says, humanize.IBytes(uint64(s.keepFree)))
	} else {
		f.OK(checkSpillSpace, "%s", says)
	}
}

// spins reports whether the kernel calls the disk of a directory rotational. An unknown
// disk is not.
func (s *setup) spins(dir string) bool {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return false
	}
	device := fmt.Sprintf("sys/dev/block/%d:%d/", unix.Major(st.Dev), unix.Minor(st.Dev))
	for _, at := range []string{"queue/rotational", "../queue/rotational"} { // of a disk; of a partition
		// The path must go through the symbolic link. Join would shorten ".." without it.
		if data, err := os.ReadFile(strings.TrimSuffix(s.root, "/") + "/" + device + at); err == nil {
			return strings.TrimSpace(string(data)) == "1"
		}
	}
	return false
}

// checkCertificate checks when the first certificate of a file expires. A file has a
// chain, and clients reject it when any of it has expired.
func (s *setup) checkCertificate(f *store.Findings, key, path string) {
	// A key in the same file is skipped.
	rest, err := os.ReadFile(path)
	if err != nil {
		f.Problem(checkCertificate, "name a file in PEM by "+key, "%s: %v", key, err)
		return
	}
	var first *x509.Certificate
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			f.Problem(checkCertificate, "name a file in PEM by "+key, "%s: %s: %v", key, path, err)
			return
		}
		if first == nil || c.NotAfter.Before(first.NotAfter) {
			first = c
		}
	}
	// Servers read certificates again, so that no restart is needed.
	const replace = "replace the file; a server that runs reads it again"
	switch {
	case first == nil:
		f.Problem(checkCertificate, "name a file in PEM by "+key, "%s: there is no certificate in %s", key, path)
	case s.now.After(first.NotAfter):
		f.Problem(checkCertificate, replace, "%s: %s ended on %s", key, path, first.NotAfter.Format(time.DateOnly))
	case s.now.Before(first.NotBefore):
		f.Problem(checkCertificate, "look at the clock, or wait", "%s: %s begins on %s", key, path,
			first.NotBefore.Format(time.DateOnly))
	case first.NotAfter.Sub(s.now) < certificateSoon:
		f.Warning(checkCertificate, replace, "%s: %s ends on %s", key, path, first.NotAfter.Format(time.DateOnly))
	default:
		f.OK(checkCertificate, "%s: good until %s", key, first.NotAfter.Format(time.DateOnly))
	}
}

// checkRules parses the file of rules as a server does. It reports the first entry that
// is probably not meant, and their number.
func (s *setup) checkRules(f *store.Findings) {
	text, err := os.ReadFile(s.rules)
	if err != nil {
		f.Problem(checkRules, "name a file by serve.rules", "%v", err)
		return
	}
	// The parser is that of the server, so that both accept the same files.
	rs, err := policy.Parse(s.rules, text)
	if err != nil {
		f.Problem(checkRules, "a server does not start with it, and one that runs keeps the rules it had", "%v", err)
		return
	}
	if found := rs.Lint(); len(found) > 0 {
		f.Warning(checkRules, "bowstring auth lint says all", "%s:%d: %s (%s)",
			s.rules, found[0].Line, found[0].Message, plural(int64(len(found)), "finding"))
		return
	}
	f.OK(checkRules, "%s: %s", s.rules, plural(int64(len(rs.List())), "rule"))
}

// auditLow is the free space below which the audit log will soon fail. At some hundred
// bytes an entry, 1 GiB is millions of entries.
const auditLow = 1 << 30

// checkAudit checks the disk of the audit log. A server that cannot write the log rejects
// all writes.
func (s *setup) checkAudit(f *store.Findings) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.auditFolder, &st); err != nil {
		f.Problem(checkAudit, "make the directory, or name another file by serve.audit", "%s: %v", s.auditFolder, err)
		return
	}
	free := st.Bavail * uint64(st.Bsize)
	if unix.Access(s.auditFolder, unix.W_OK|unix.X_OK) != nil {
		f.Problem(checkAudit, "give the directory to the server's user", "this user may not write to %s", s.auditFolder)
	} else if free < auditLow {
		f.Warning(checkAudit, "free some: while the log cannot be written, nothing can be imported, dropped "+
			"or collected",
			"%s free for it", humanize.IBytes(free))
	} else {
		f.OK(checkAudit, "%s free for it", humanize.IBytes(free))
	}
}
