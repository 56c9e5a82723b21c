package command

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/cmd/bowstring/watch"
	"bowstring/fetch/store"
	"bowstring/fetch/store/cql"
	"bowstring/flight"
)

const (
	// supportWithin bounds each question to the store, the server and its admin listener. A
	// part that hangs must not keep the others out of the archive.
	supportWithin = 15 * time.Second
	// supportLook is the time over which the rates of streams are measured.
	supportLook = time.Second
	// supportLogBytes and supportProfileBytes bound the archive, which people send by mail.
	supportLogBytes     = 1 << 20
	supportProfileBytes = 8 << 20
)

// support collects an archive for a bug report. Its parts are texts and JSON documents, so
// that the user can read all of it before sending it.
type support struct {
	app    *App
	store  string // to examine; "" for none
	log    string // file of the server's log; "-" for the standard input, "" for none
	redact redactor
	now    time.Time
	parts  []supportPart
}

// supportPart is a file of the archive.
type supportPart struct {
	name, about string
	data        []byte
	missing     error // why there is no file
}

// writeSupport collects the archive, prints what it holds, and writes it to path. A part
// that cannot be collected is listed with the reason and is no error.
func (c *DoctorCmd) writeSupport(ctx context.Context, app *App) error {
	if !strings.HasSuffix(c.Support, ".tar.gz") && !strings.HasSuffix(c.Support, ".tgz") {
		return usagef("--support: got %q, want a file that ends in .tar.gz", c.Support)
	}
	s := &support{app: app, store: c.Address, log: c.Log, now: time.Now().UTC()}
	if s.store == "" {
		s.store = app.globals.Store // "" if --server names what the report is about
	}
	s.learn()
	s.collect(ctx)
	for _, line := range s.contents() {
		if err := app.Printf("%s\n", printable(line)); err != nil {
			return err
		}
	}
	if err := s.write(c.Support); err != nil {
		return fmt.Errorf("--support: %w", err)
	}
	return app.Printf("%s is written. Secrets are removed as far as they are recognised: read it before you send it.\n",
		c.Support)
}

// passwordFiles returns the files that an address of a store names for passwords.
func passwordFiles(address string) []string {
	_, query, _ := strings.Cut(address, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil // opening the store reports it
	}
	return values["password_file"]
}

// learn makes the secrets of this machine known to the redactor: of the environment, of
// addresses, and of the files that settings name. A file that cannot be read has no
// secrets to remove.
func (s *support) learn() {
	files := []string{os.Getenv(cql.EnvPasswordFile)}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		s.redact.addURL(value)
		secret := credentialName.MatchString(name) || strings.HasSuffix(name, "_KEY") || strings.HasSuffix(name, "_HEADERS")
		if _, err := os.Stat(value); err == nil && filepath.IsAbs(value) {
			// The name of a file of secrets is no secret, and PWD is a directory.
			if secret || strings.HasSuffix(name, "_FILE") || strings.HasSuffix(name, "_CREDENTIALS") {
				files = append(files, value)
			}
		} else if secret {
			s.redact.addFile(value)
		}
	}
	for _, key := range s.app.settings.keys {
		text := s.app.settings.text(key)
		if text == "" {
			continue
		}
		s.redact.addURL(text)
		files = append(files, passwordFiles(text)...)
		if slices.Contains(secretFiles, key) {
			files = append(files, text)
		}
	}
	s.redact.addURL(s.store)
	files = append(files, passwordFiles(s.store)...)
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() || info.Size() > 1<<20 {
			continue
		}
		if data, err := os.ReadFile(file); err == nil {
			s.redact.addFile(string(data))
		}
	}
}

// secretFiles are the settings that name a file of secrets. The archive has the names of
// the files and never their content.
var secretFiles = []string{
	"token-file", "client-key", "serve.tls-key", "serve.tokens", "serve.bucket-credentials", "serve.cluster-key-file",
	"serve.admin-key", "serve.admin-token-file",
}

// shownTexts are the settings of free text that are shown. Text that is not listed here is
// removed, so that a new setting cannot put a secret into an archive.
var shownTexts = []string{
	"server", "serve.listen", "serve.buckets", "serve.oidc-issuer", "serve.oidc-audience", "serve.oidc-principal-claim",
	"serve.oidc-groups-claim", "serve.oidc-tenant-claim", "serve.oidc-prefix", "serve.cluster", "serve.node",
	"serve.advertise", "serve.zone", "serve.peer-egress-zones", "serve.local-mode", "serve.admin", "serve.admin-host",
	"serve.otlp-endpoint",
}

// setting returns what the archive shows of a setting, by its type: numbers, durations,
// sizes, switches and choices as they are, paths and listed texts without the secrets
// that an address may carry, and nothing of other texts.
func (s *support) setting(key string, value any) any {
	text, ok := value.(string)
	if !ok || text == "" {
		return value
	}
	f := s.app.settings.known[key]
	switch {
	case f.Enum != "", f.Target.Kind() != reflect.String: // one of its choices; a size or a duration
		return text
	case f.Tag.Type == "path", f.Tag.Type == "store", slices.Contains(shownTexts, key):
		return s.redact.text(text)
	}
	return removed
}

// collect fills in the parts.
func (s *support) collect(ctx context.Context) {
	s.document("about.json", "version, platform, user and time", s.about)
	s.document("settings.json", "the settings of this machine, without secrets, and where each comes from", s.settings)
	s.document("environment.json", "names of variables, and the values of Go's own", s.environment)
	s.document("doctor.json", "what doctor finds in the store and on this machine", func() (any, error) {
		return s.findings(ctx)
	})
	s.document("limits.json", "limits of the process and of its control group", s.limits)
	s.document("disks.json", "size and free space of the file systems of store, spill and records", s.disks)
	s.server(ctx)
	s.text("goroutines.txt", "what each goroutine of the server does", func() ([]byte, error) { return s.goroutines(ctx) })
	s.text("log.txt", "the last lines of the log, without secrets", s.lines)
}

// document adds a JSON document without its secrets.
func (s *support) document(name, about string, collect func() (any, error)) {
	part := supportPart{name: name, about: about}
	v, err := collect()
	if err == nil {
		part.data, err = json.Marshal(v)
	}
	if err == nil {
		part.data, err = s.redact.document(part.data)
	}
	s.add(part, err)
}

// text adds a text without its secrets.
func (s *support) text(name, about string, collect func() ([]byte, error)) {
	part := supportPart{name: name, about: about}
	data, err := collect()
	part.data = []byte(s.redact.text(string(data)))
	s.add(part, err)
}

func (s *support) add(part supportPart, err error) {
	if err != nil {
		part.data, part.missing = nil, errors.New(s.redact.text(err.Error()))
	}
	s.parts = append(s.parts, part)
}

func (s *support) about() (any, error) {
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		return nil, err
	}
	return struct {
		Build  build     `json:"build"`
		Time   time.Time `json:"time"`
		Kernel string    `json:"kernel"`
		CPUs   int       `json:"cpus"`
		UID    int       `json:"uid"`
	}{thisBuild(), s.now, unix.ByteSliceToString(uname.Release[:]), runtime.NumCPU(), os.Getuid()}, nil
}

func (s *support) settings() (any, error) {
	type setting struct {
		Name  string `json:"name"`
		Value any    `json:"value"`
		From  string `json:"from"`
	}
	var list []setting
	for _, key := range s.app.settings.keys {
		value, err := s.app.settings.effective(key)
		if err != nil {
			return nil, err
		}
		list = append(list, setting{key, s.setting(key, value), s.app.settings.origin(key).String()})
	}
	return list, nil
}

// environment lists the variables that change what the program does. Only those of Go's
// runtime have a value, because any other may be a secret or hold one.
func (s *support) environment() (any, error) {
	found := struct {
		Go  map[string]string `json:"go"`
		Set []string          `json:"set"` // names alone
	}{Go: map[string]string{}}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		switch {
		case slices.Contains([]string{"GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK"}, name):
			found.Go[name] = value
		case slices.ContainsFunc([]string{"BOWSTRING_", "AWS_", "AZURE_", "GOOGLE_", "OTEL_", "SSL_", "STORAGE_"},
			func(prefix string) bool { return strings.HasPrefix(name, prefix) }),
			strings.HasSuffix(strings.ToLower(name), "_proxy"):
			found.Set = append(found.Set, name)
		}
	}
	slices.Sort(found.Set)
	return found, nil
}

func (s *support) findings(ctx context.Context) (any, error) {
	var found struct {
		Store    string         `json:"store"`
		Findings store.Findings `json:"findings"`
		Failed   string         `json:"failed,omitempty"` // why the store was not examined
	}
	found.Store = s.store
	if s.store != "" {
		within, cancel := context.WithTimeout(ctx, supportWithin)
		defer cancel()
		var err error
		if found.Findings, err = examine(within, s.store, s.app.quietLog()); err != nil {
			found.Failed = err.Error()
		}
	}
	here, err := thisSetup(s.app)
	if err != nil {
		return nil, err
	}
	found.Findings = append(found.Findings, here.examine()...)
	return found, nil
}

// limits reads what the kernel allows this process. A server that another unit has started
// may have other limits; its control group is then in its own log.
func (s *support) limits() (any, error) {
	found := map[string]string{}
	for _, file := range []string{"/proc/self/limits", "/proc/self/cgroup", "/proc/loadavg", "/proc/meminfo"} {
		if data, err := os.ReadFile(file); err == nil {
			found[file] = string(data)
		}
	}
	// Version 2 of control groups has one folder for all limits, version 1 one for each.
	for _, pattern := range []string{"memory.max", "memory.high", "memory.current", "memory.events", "cpu.max",
		"cpu.stat", "pids.max", "io.max", "memory/memory.limit_in_bytes", "cpu/cpu.cfs_quota_us"} {
		for _, folder := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup" + ownCgroup()} {
			file := filepath.Join(folder, pattern)
			if data, err := os.ReadFile(file); err == nil {
				found[file] = string(data)
			}
		}
	}
	return found, nil
}

// ownCgroup returns the path of this process in the tree of control groups of version 2.
func ownCgroup() string {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return path
		}
	}
	return ""
}

func (s *support) disks() (any, error) {
	type disk struct {
		Path   string `json:"path"`
		Type   string `json:"type,omitempty"` // the magic number of the file system
		Bytes  uint64 `json:"bytes"`
		Free   uint64 `json:"free_bytes"`
		Inodes uint64 `json:"free_inodes"`
		Failed string `json:"failed,omitempty"`
	}
	found := map[string]disk{}
	add := func(what, path string) {
		var st unix.Statfs_t
		d := disk{Path: path}
		if err := unix.Statfs(path, &st); err != nil {
			d.Failed = err.Error()
		} else {
			d.Type = fmt.Sprintf("%#x", st.Type)
			d.Bytes, d.Free, d.Inodes = st.Blocks*uint64(st.Bsize), st.Bavail*uint64(st.Bsize), st.Ffree
		}
		found[what] = d
	}
	if s.store != "" && !IsRemote(s.store) {
		add("store", s.store)
	}
	for _, key := range []string{"serve.spill", "serve.usage", "serve.lineage", "serve.audit"} {
		if path := s.app.settings.text(key); path != "" {
			if key == "serve.audit" {
				path = filepath.Dir(path)
			}
			add(key, path)
		}
	}
	add("temporary files", os.TempDir())
	return found, nil
}

// server adds the counters of the running server, and where the time of its streams goes.
func (s *support) server(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, supportWithin)
	defer cancel()
	address := s.address()
	// The copy works on the server, whatever store this command works on.
	globals := *s.app.globals
	globals.Server, globals.Store = address, ""
	app := *s.app
	app.globals = &globals
	var before, after flight.Stats
	err := app.with(within, false, func(c *client) (err error) {
		if before, err = actOne[flight.Stats](within, c, "stats", struct{}{}); err != nil {
			return err
		}
		if !sleep(within, supportLook) {
			return within.Err()
		}
		after, err = actOne[flight.Stats](within, c, "stats", struct{}{})
		return err
	})
	if err != nil {
		err = fmt.Errorf("the running server: %w; --server names it", err)
	}
	s.document("stats.json", "the counters of the running server", func() (any, error) { return after, err })
	s.document("streams.json", "jobs and streams that run, their rates, and where their time goes", func() (any, error) {
		if err != nil {
			return nil, err
		}
		return watch.Between(address, &watch.Observation{At: s.now, Stats: before},
			&watch.Observation{At: s.now.Add(supportLook), Stats: after}), nil
	})
}

// address returns the address of the server that the report is about: --server, or else
// the one on which serve listens with the settings of this machine.
func (s *support) address() string {
	if s.app.globals.Server != "" {
		return s.app.globals.Server
	}
	listen := s.app.settings.text("serve.listen")
	if _, ok := socketPath(listen); ok {
		return listen
	}
	if s.app.settings.text("serve.tls-cert") != "" {
		return "grpc+tls://" + dialable(listen)
	}
	return "grpc://" + dialable(listen)
}

// goroutines reads the stacks of the server's goroutines from its admin listener. The
// stacks have no content of variables.
func (s *support) goroutines(ctx context.Context) ([]byte, error) {
	within, cancel := context.WithTimeout(ctx, supportWithin)
	defer cancel()
	text := s.app.settings.text
	listen := text("serve.admin")
	if listen == "" {
		return nil, errors.New("the server's goroutines: serve.admin is not set, and no listener shows them")
	}
	transport, scheme := &http.Transport{}, "http://"
	defer transport.CloseIdleConnections()
	if file := text("serve.admin-cert"); file != "" {
		scheme = "https://"
		var err error
		if transport.TLSClientConfig, err = trusting(file); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(within, http.MethodGet,
		scheme+dialable(listen)+"/debug/pprof/goroutine?debug=2", nil)
	if err != nil {
		return nil, err
	}
	token := os.Getenv(adminTokenVariable)
	if file := text("serve.admin-token-file"); file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		token = string(data)
	}
	if token = strings.TrimSpace(token); token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return nil, fmt.Errorf("the server's goroutines: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(answer.Body, supportProfileBytes))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("the server's goroutines: serve.admin answers %s: %s", answer.Status, bytes.TrimSpace(data))
	}
	return data, err
}

// trusting returns how to verify a listener of this machine by its own certificate, which
// no authority may have signed. The token goes to the owner of that certificate only.
func trusting(file string) (*tls.Config, error) {
	rest, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if block.Type != "CERTIFICATE" || err != nil {
			continue
		}
		if config.RootCAs.AddCert(c); config.ServerName == "" {
			switch {
			case len(c.DNSNames) > 0:
				config.ServerName = strings.Replace(c.DNSNames[0], "*", "any", 1)
			case len(c.IPAddresses) > 0:
				config.ServerName = c.IPAddresses[0].String()
			}
		}
	}
	return config, nil
}

// lines returns the end of the log.
func (s *support) lines() ([]byte, error) {
	if s.log == "" {
		return nil, errors.New("the log: --log names its file, or - for the standard input: " +
			"journalctl -u bowstring | bowstring doctor --support FILE --log -")
	}
	in := os.Stdin
	if s.log != "-" {
		var err error
		if in, err = os.Open(s.log); err != nil {
			return nil, err
		}
		defer func() { _ = in.Close() }()
		// A log may be long. The standard input cannot be positioned, and is read through.
		if info, err := in.Stat(); err == nil && info.Size() > 2*supportLogBytes {
			if _, err := in.Seek(-supportLogBytes, io.SeekEnd); err != nil {
				return nil, err
			}
		}
	}
	var end []byte
	for piece := make([]byte, 64<<10); ; {
		n, err := in.Read(piece)
		end = append(end, piece[:n]...)
		if len(end) > 2*supportLogBytes {
			end = append(end[:0], end[len(end)-supportLogBytes:]...)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	// A line that was cut could hide the beginning of a secret.
	if len(end) >= supportLogBytes {
		_, end, _ = bytes.Cut(end[len(end)-supportLogBytes:], []byte("\n"))
	}
	return end, nil
}

// contents says in lines what the archive holds and what it lacks.
func (s *support) contents() []string {
	var lines []string
	for _, p := range s.parts {
		if p.missing == nil {
			lines = append(lines, fmt.Sprintf("%-18s %7d bytes: %s", p.name, len(p.data), p.about))
		}
	}
	for _, p := range s.parts {
		if p.missing != nil {
			lines = append(lines, fmt.Sprintf("%-18s is missing: %s", p.name, p.missing))
		}
	}
	return lines
}

// write makes the archive. An existing file is left alone, and a file that could not be
// written completely is removed. Only the user can read it.
func (s *support) write(path string) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists already: name another file", path)
	}
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, file.Close()); err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	compressed := gzip.NewWriter(file)
	packed := tar.NewWriter(compressed)
	about := supportPart{name: "CONTENTS.txt", data: []byte(strings.Join(s.contents(), "\n") + "\n")}
	for _, p := range append([]supportPart{about}, s.parts...) {
		if p.missing != nil {
			continue
		}
		header := &tar.Header{Name: "bowstring-support/" + p.name, Mode: 0o600, Size: int64(len(p.data)), ModTime: s.now}
		if err := packed.WriteHeader(header); err != nil {
			return err
		}
		if _, err := packed.Write(p.data); err != nil {
			return err
		}
	}
	return errors.Join(packed.Close(), compressed.Close())
}
