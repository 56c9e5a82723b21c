package command

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// plants makes secrets and remembers where each was planted.
type plants map[string]string

func (p plants) secret(place string) string {
	s := fmt.Sprintf("Pl4nt%06dxQz", len(p)+271_828)
	p[s] = place
	return s
}

// find returns the places whose secrets are in text.
func (p plants) find(text string) (places []string) {
	for s, place := range p {
		if strings.Contains(text, s) {
			places = append(places, place)
		}
	}
	slices.Sort(places)
	return places
}

// archived returns the files of an archive.
func archived(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	compressed, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for packed := tar.NewReader(compressed); ; {
		h, err := packed.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(packed)
		if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimPrefix(h.Name, "bowstring-support/")] = string(data)
	}
}

// TestSupportHasNoSecrets plants a secret in every place where a setting, an address, a
// file, the environment or the log may have one.
func TestSupportHasNoSecrets(t *testing.T) {
	dir, planted := t.TempDir(), plants{}
	in := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) string {
		t.Helper()
		if err := os.WriteFile(in(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return in(name)
	}
	if err := makeDataset(in("store"), "photos", 30, 0); err != nil {
		t.Fatal(err)
	}
	const adminToken = "pl4nt-of-the-admin-listener-0123456789"
	planted[adminToken] = "serve.admin-token-file"
	server, addr, url := startAdmin(t, nil, "--store", in("store"), "--admin-token-file",
		write("admin-token", adminToken+"\n"))
	admin := strings.TrimPrefix(url, "http://")

	// Every setting of text has an address with credentials, and every file of secrets one.
	lines := []string{"log-format: json", "serve:", "  listen: " + addr, "  admin: " + admin,
		"  admin-token-file: admin-token", "  max-streams: 77", "  spill: spill"}
	used := []string{"serve.listen", "serve.admin", "serve.admin-token-file", "server"}
	address := func(place string) string {
		return fmt.Sprintf("https://%s:%s@example.org:99/path?X-Amz-Signature=%s&region=eu#%s", planted.secret(place+" user"),
			planted.secret(place+" password"), planted.secret(place+" parameter"), planted.secret(place+" fragment"))
	}
	for _, key := range shownTexts {
		if name, ok := strings.CutPrefix(key, "serve."); ok && !slices.Contains(used, key) {
			lines = append(lines, fmt.Sprintf("  %s: %q", name, address(key)))
		}
	}
	for _, key := range secretFiles {
		if name, ok := strings.CutPrefix(key, "serve."); ok && !slices.Contains(used, key) {
			text := fmt.Sprintf("buckets:\n- bucket: s3://%s\n  secret_access_key: \"%s\"\n", name, planted.secret(key))
			lines = append(lines, fmt.Sprintf("  %s: %s", name, write(name, text)))
		}
	}
	config := write("config.yaml", strings.Join(lines, "\n")+"\n")

	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "PWD=" + dir, "GOGC=123", "BOWSTRING_CONFIG=" + config,
		"MY_TOKEN_FILE=" + write("my-token", planted.secret("MY_TOKEN_FILE")+"\n")}
	for _, name := range []string{"BOWSTRING_CQL_PASSWORD", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
		"AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "MY_DATABASE_PASSWORD"} {
		env = append(env, name+"="+planted.secret(name))
	}
	env = append(env, "HTTPS_PROXY=http://user:"+planted.secret("HTTPS_PROXY")+"@proxy:3128",
		"OTEL_EXPORTER_OTLP_HEADERS=x-scope="+planted.secret("OTEL_EXPORTER_OTLP_HEADERS"))

	// The log has what is known from above, and credentials that only their form gives away.
	var log strings.Builder
	_, _ = fmt.Fprintln(&log, "level=INFO msg=serving address=grpc://127.0.0.1:8815 store=/data/store dataset=photos@3")
	for _, secret := range slices.Sorted(func(yield func(string) bool) {
		for s := range planted {
			if !yield(s) {
				return
			}
		}
	}) {
		// A user's name and a fragment are removed from addresses alone.
		if place := planted[secret]; !strings.HasSuffix(place, " user") && !strings.HasSuffix(place, " fragment") {
			_, _ = fmt.Fprintf(&log, "level=WARN msg=\"a read has failed\" error=\"refused: %s\"\n", secret)
		}
	}
	for _, form := range []string{
		"reads cql://cassandra:%s@db1:9042,db2:9042/photos?rf=3", "reads s3://bucket/prefix?X-Amz-Security-Token=%s&region=eu",
		"https://account.blob.core.windows.net/c?sv=2024&sig=%s", "http://u:a/b?%s@host/", "Authorization: Bearer %s",
		"authorization=Basic dXNlcjpwYXNz%s", `"Authorization":"Bearer %s"`, "bearer %s", "password=%s", "passwd: '%s'",
		`{"token":"%s"}`, `error="{\"secret_key\":\"%s\"}"`, "api_token = %s", "AWS_SECRET_ACCESS_KEY=%s", "cookie: id=%s",
		"-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0B%s\n-----END PRIVATE KEY-----",
		"x-api-key: %s", "api_key=%s", "AccountKey=%s;EndpointSuffix=core", "passphrase=%s", "password=Hunter2,%s",
		`{"password":"a quote\"%s"}`, "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJh%s.c2lnbmF0dXJl", "bow_0123456789abcdef_%sabcdefgh",
	} {
		_, _ = fmt.Fprintf(&log, "msg=%s\n", fmt.Sprintf(form, planted.secret("log "+form)))
	}
	_, _ = fmt.Fprintln(&log, "level=INFO msg=\"the end\"")
	write("server.log", log.String())

	support := func(out string, args ...string) (stdout, stderr string) {
		t.Helper()
		cmd := exec.Command("bowstring", append([]string{"doctor", "--support", out}, args...)...)
		var said, warned bytes.Buffer
		cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = env, dir, &said, &warned
		if err := cmd.Run(); err != nil {
			t.Fatalf("doctor --support: %v\n%s%s", err, said.String(), warned.String())
		}
		return said.String(), warned.String()
	}
	clean := func(files map[string]string) {
		t.Helper()
		for name, text := range files {
			for _, place := range planted.find(text) {
				t.Errorf("%s has the secret of %s", name, place)
			}
		}
	}

	out := in("support.tar.gz")
	said, _ := support(out, in("store"), "--log", in("server.log"))
	files := archived(t, out)
	clean(files)
	clean(map[string]string{"the output": said})
	for name, has := range map[string]string{
		"about.json": `"kernel"`, "settings.json": `"value": 77`, "environment.json": `"GOGC": "123"`,
		"doctor.json": `"check": "open files"`, "limits.json": "Max open files", "disks.json": `"serve.spill"`,
		"stats.json": `"max_streams"`, "streams.json": `"rows_per_s"`, "goroutines.txt": "goroutine ",
		"log.txt": "store=/data/store dataset=photos@3",
	} {
		if !strings.Contains(files[name], has) {
			t.Errorf("%s has no %s:\n%.2000s", name, has, files[name])
		}
		if !strings.Contains(said, name) || !strings.Contains(files["CONTENTS.txt"], name) {
			t.Errorf("%s is listed neither by the command nor in the archive:\n%s", name, said)
		}
	}
	if !strings.Contains(files["disks.json"], dir) {
		t.Errorf("the current directory is taken for a password:\n%s", files["disks.json"])
	}
	for _, kept := range []string{"cql://REMOVED@db1:9042,db2:9042/photos?rf=3", "region=eu", "the end"} {
		if !strings.Contains(files["log.txt"], kept) {
			t.Errorf("the log lacks %s:\n%s", kept, files["log.txt"])
		}
	}
	for _, name := range []string{"HTTPS_PROXY", "AWS_SESSION_TOKEN"} {
		if !strings.Contains(files["environment.json"], fmt.Sprintf("%q", name)) {
			t.Errorf("the environment does not say that %s is set:\n%s", name, files["environment.json"])
		}
	}
	if info, err := os.Stat(out); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the archive has mode %v, %v; want 0600", info.Mode(), err)
	}

	// A store whose address has credentials, and which does not answer; no server, no log.
	if err := server.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := server.Wait(); err != nil {
		t.Fatal(err)
	}
	out = in("again.tgz")
	said, _ = support(out, "cql://user:"+planted.secret("store password")+"@127.0.0.1:1/photos?password="+
		planted.secret("store parameter"))
	files = archived(t, out)
	clean(files)
	clean(map[string]string{"the output": said})
	for _, name := range []string{"stats.json", "streams.json", "goroutines.txt", "log.txt"} {
		if _, there := files[name]; there || !strings.Contains(files["CONTENTS.txt"], name+strings.Repeat(" ",
			max(0, 18-len(name)))+" is missing: ") {
			t.Errorf("%s is not said to be missing:\n%s", name, files["CONTENTS.txt"])
		}
	}
	if !strings.Contains(files["doctor.json"], `"failed"`) {
		t.Errorf("doctor.json does not say that the store was not examined:\n%s", files["doctor.json"])
	}

	// An archive is not overwritten.
	cmd := exec.Command("bowstring", "doctor", "--support", out, in("store"))
	cmd.Env = env
	if text, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(text), "exists already") {
		t.Errorf("a second archive: %v, %s; want an error that it exists", err, text)
	}
}

// TestSupportKnowsEverySetting requires that each setting of free text was decided about,
// and that the decisions name settings that exist.
func TestSupportKnowsEverySetting(t *testing.T) {
	var keys []string
	for _, s := range printedSettings(t) {
		keys = append(keys, s.Name)
	}
	for _, key := range slices.Concat(shownTexts, secretFiles) {
		if !slices.Contains(keys, key) {
			t.Errorf("%s is no setting", key)
		}
	}
}

type printedSetting struct {
	Name  string `json:"name"`
	Value any    `json:"value"`
}

func printedSettings(t *testing.T) (list []printedSetting) {
	t.Helper()
	text, err := exec.Command("bowstring", "config", "print", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// TestAddressesKeepNoPassword gives addresses with passwords of any characters, escaped or
// not. No piece of a password may be left.
func TestAddressesKeepNoPassword(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ/?#@:&=%;+.,-_~!$*()[]0123456789"
	for range 4_000 {
		// Pieces between the special characters are long enough to be told from hosts.
		var password strings.Builder
		var pieces []string
		for range 1 + random.IntN(3) {
			piece := fmt.Sprintf("ZQ%04d", random.IntN(10_000))
			pieces = append(pieces, piece)
			password.WriteByte(letters[random.IntN(len(letters))])
			password.WriteString(piece)
		}
		address := []string{
			"cql://user:" + password.String() + "@db1:9042,db2/photos?rf=3",
			"https://" + password.String() + "@host/path",
			"s3://bucket/prefix?region=eu&secret=" + strings.NewReplacer("&", "", ";", "").Replace(password.String()),
		}[random.IntN(3)]
		var r redactor
		got := r.text("before " + address + " after")
		for _, piece := range pieces {
			if strings.Contains(got, piece) {
				t.Fatalf("%q is left of the password in %q: %q", piece, address, got)
			}
		}
		if !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") {
			t.Fatalf("%q became %q: the words around it are gone", address, got)
		}
	}
}

// TestRedactionKeepsWhatIsNoSecret has the texts that a bug report needs.
func TestRedactionKeepsWhatIsNoSecret(t *testing.T) {
	var r redactor
	r.add("sixsix")
	r.add("short")
	for _, text := range []string{
		"grpc://127.0.0.1:8815", "grpc+tls://[::1]:8815", "s3://bucket/prefix?region=eu-central-1&endpoint=http://127.0.0.1:9000",
		"cql://a:9042,b,c:1/ks?rf=3&dc=one", "gs://bucket/photos@prod", "a short text", "/data/store: 3 problems",
		"grpc+unix:///run/user/0/bowstring.sock", "unsupported key", "tokens: 5", "grpc://10.0.0.1:8815: unavailable",
	} {
		want := text
		if text == "tokens: 5" {
			want = "tokens: " + removed // its name is like that of a credential
		}
		if got := r.text(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
	if got := passwordFiles("cql://db/photos?rf=3&password_file=/a%20b"); !slices.Equal(got, []string{"/a b"}) {
		t.Errorf("files of passwords: %q", got)
	}
	if got := r.text("a sixsix b"); got != "a "+removed+" b" {
		t.Errorf("a known secret: %q", got)
	}
	got, err := r.document([]byte(`{"token": "abc", "rows": 9007199254740993, "list": ["sixsix", {"sig": "x"}], "tokens": 7}`))
	want := `{"list":["REMOVED",{"sig":"x"}],"rows":9007199254740993,"token":"REMOVED","tokens":7}`
	var compact bytes.Buffer
	if err == nil {
		err = json.Compact(&compact, got)
	}
	if err != nil || compact.String() != want {
		t.Errorf("document: %s, %v; want %s", compact.String(), err, want)
	}
}
