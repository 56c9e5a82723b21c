package cql

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gocql/gocql"

	"bowstring/schema"
)

func TestParseURI(t *testing.T) {
	c, err := ParseURI("cql://a.example:9142,10.0.0.2,[fd00::1]/images?consistency=ONE&write=quorum&serial=local_serial&dc=dc1" +
		"&rf=2&conns=16" +
		"&proto=3&timeout=2s&connect=1s&user=ann&password_file=%2Frun%2Fsecret&ca=ca.pem&cert=c.pem" +
		"&key=k.pem&server_name=db")
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Hosts: []string{"a.example", "10.0.0.2", "fd00::1"}, Port: 9142, Keyspace: "images",
		Read: gocql.One, Write: gocql.Quorum, LocalSerial: true, DC: "dc1", RF: 2, Conns: 16, Proto: 3,
		Timeout: 2 * time.Second, Connect: time.Second,
		User: "ann", PasswordFile: "/run/secret", TLS: true, CA: "ca.pem", Cert: "c.pem", Key: "k.pem",
		ServerName: "db",
	}
	if !slices.Equal(c.Hosts, want.Hosts) {
		t.Errorf("hosts %v, want %v", c.Hosts, want.Hosts)
	}
	c.Hosts, want.Hosts = nil, nil
	if got := *c; !equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	c, err = ParseURI("cql://localhost/b")
	if err != nil {
		t.Fatal(err)
	}
	if c.Port != 9042 || c.Read != gocql.LocalOne || c.Write != gocql.LocalQuorum || c.Proto != 4 || c.TLS ||
		c.LocalSerial {
		t.Errorf("the defaults are %+v", c)
	}
	if got := c.String(); got != "cql://localhost:9042/b" {
		t.Errorf("written as %s", got)
	}
}

// equal compares everything but the hosts.
func equal(a, b Config) bool { return a.String() == b.String() }

func TestParseURIRefuses(t *testing.T) {
	for uri, field := range map[string]string{
		"http://a/b":                        "scheme",
		"cql:/a/b":                          "scheme",
		"cql:///b":                          "host",
		"cql://a,/b":                        "host",
		"cql://a,a/b":                       "host",
		"cql://a b/b":                       "host",
		"cql://fd00::1/b":                   "host",
		"cql://[a]/b":                       "host",
		"cql://a:/b":                        "host",
		"cql://a:0/b":                       "port",
		"cql://a:65536/b":                   "port",
		"cql://a:x/b":                       "port",
		"cql://a:1,b:2/b":                   "port",
		"cql://a":                           "keyspace",
		"cql://a/":                          "keyspace",
		"cql://a/B":                         "keyspace",
		"cql://a/b/c":                       "keyspace",
		"cql://a/system":                    "keyspace",
		"cql://a/b#c":                       "address",
		"cql://u:p@a/b":                     "user",
		"cql://a/b?consistency=most":        "consistency",
		"cql://a/b?consistency=each_quorum": "consistency",
		"cql://a/b?write=any":               "write",
		"cql://a/b?serial=yes":              "serial",
		"cql://a/b?dc=":                     "dc",
		"cql://a/b?rf=0":                    "rf",
		"cql://a/b?conns=0":                 "conns",
		"cql://a/b?conns=1&conns=2":         "conns",
		"cql://a/b?proto=5":                 "proto",
		"cql://a/b?timeout=10":              "timeout",
		"cql://a/b?timeout=-1s":             "timeout",
		"cql://a/b?connect=1ns":             "connect",
		"cql://a/b?user=":                   "user",
		"cql://a/b?tls=yes":                 "tls",
		"cql://a/b?cert=x":                  "cert",
		"cql://a/b?tls=0&verify=0":          "tls",
		"cql://a/b?consistancy=one":         "parameters",
		"cql://a/b?%zz":                     "parameters",
		"cql://a/b?password=secret":         `"password"`,
		"cql://a/b?server_name=%0a&ca=x":    "server_name",
	} {
		_, err := ParseURI(uri)
		var f *schema.FieldError
		if !errors.As(err, &f) || f.Field != field {
			t.Errorf("%s: got %v, want an error about %s", uri, err, field)
			continue
		}
		if !errors.Is(err, schema.ErrInvalid) || f.Want == "" {
			t.Errorf("%s: %v does not say what is right", uri, err)
		}
		if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "u:p") {
			t.Errorf("%s: the error %v holds a password", uri, err)
		}
	}
	_, err := ParseURI("cql://a/b?consistancy=one")
	if !strings.Contains(err.Error(), "did you mean consistency?") {
		t.Errorf("no hint in %v", err)
	}
}

func TestCredentials(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("from file\r\nsecond line"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		config         Config
		env            map[string]string
		user, password string
		fails          string
	}{
		"none": {},
		"file": {config: Config{User: "u", PasswordFile: file}, user: "u", password: "from file"},
		"environment": {env: map[string]string{EnvUser: "e", EnvPassword: "from env"}, user: "e",
			password: "from env"},
		"file in environment": {env: map[string]string{EnvUser: "e", EnvPasswordFile: file}, user: "e",
			password: "from file"},
		"address first": {config: Config{User: "u", PasswordFile: file},
			env: map[string]string{EnvUser: "e", EnvPassword: "from env"}, user: "u", password: "from file"},
		"no file":        {config: Config{User: "u", PasswordFile: file + "?"}, fails: "password file"},
		"user alone":     {config: Config{User: "u"}, fails: "password_file"},
		"password alone": {env: map[string]string{EnvPassword: "from env"}, fails: EnvUser},
		"two in the environment": {env: map[string]string{EnvUser: "e", EnvPassword: "from env", EnvPasswordFile: file},
			fails: EnvPasswordFile},
	} {
		t.Run(name, func(t *testing.T) {
			for _, env := range []string{EnvUser, EnvPassword, EnvPasswordFile} {
				t.Setenv(env, c.env[env])
			}
			user, password, err := c.config.credentials()
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) || strings.Contains(err.Error(), "from env") {
					t.Errorf("got %v, want an error that says %s and no password", err, c.fails)
				}
				return
			}
			if err != nil || user != c.user || password != c.password {
				t.Errorf("got %q, %q, %v; want %q, %q", user, password, err, c.user, c.password)
			}
		})
	}
}

func FuzzParseURI(f *testing.F) {
	for _, seed := range []string{
		"cql://a/b", "cql://a:9042,[::1]/b?consistency=one&tls=1&verify=0",
		"cql://a/b?timeout=1h1m&ca=%2Fx&password_file=p&user=%C3%BC",
		"cql://u:p@a/b", "cql://[/b", "cql://a/b?%", "cql://a/b?dc=%00",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		c, err := ParseURI(uri)
		if err != nil {
			if !errors.Is(err, schema.ErrInvalid) {
				t.Fatalf("%q: %v is of no kind", uri, err)
			}
			return
		}
		// A formatted address parses to the same configuration, and formats to the same text.
		s := c.String()
		again, err := ParseURI(s)
		if err != nil {
			t.Fatalf("%q was written as %q: %v", uri, s, err)
		}
		if again.String() != s {
			t.Fatalf("%q was written as %q and then as %q", uri, s, again)
		}
	})
}

func TestRing(t *testing.T) {
	for _, n := range []int{1, 2, 3, 64, 1000} {
		parts := ring(n)
		if len(parts) != n || parts[0].start != -1<<63 || parts[n-1].end != 1<<63-1 {
			t.Errorf("%d parts: %d, from %d to %d", n, len(parts), parts[0].start, parts[n-1].end)
		}
		for i, p := range parts {
			if p.start >= p.end || i > 0 && p.start != parts[i-1].end {
				t.Errorf("%d parts: part %d is %v", n, i, p)
			}
		}
	}
}

// TestConnsPerHost: there are as many connections as the way takes milliseconds, within bounds, and shared by hosts.
func TestConnsPerHost(t *testing.T) {
	near := min(mostConns, max(nearConns, nearConnsPerProcessor*runtime.GOMAXPROCS(0)))
	far := Config{}
	for _, tt := range []struct {
		config   Config
		hosts    int
		answered time.Duration
		want     int
	}{
		{far, 1, 0, near},
		{far, 1, 2 * time.Millisecond, near},
		{far, 1, time.Duration(near+1) * time.Millisecond, min(near+1, mostConns)},
		{far, 1, 150 * time.Millisecond, mostConns},
		{far, 3, 150 * time.Millisecond, 11},
		{far, 100, 150 * time.Millisecond, leastConns},
		{far, 100, 0, leastConns},
		{Config{Conns: 7}, 3, 0, 7},
	} {
		if got := tt.config.connsPerHost(tt.hosts, tt.answered); got != tt.want {
			t.Errorf("%d hosts that answer within %s: %d connections to each, want %d", tt.hosts, tt.answered, got, tt.want)
		}
	}
}
