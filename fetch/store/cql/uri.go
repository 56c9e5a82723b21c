package cql

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gocql/gocql"

	"bowstring/schema"
)

// Scheme begins the addresses of stores of this package.
const Scheme = "cql://"

// Config is what the address of a store says:
//
//	cql://HOST[:PORT][,HOST...]/KEYSPACE?PARAMETER=VALUE&...
//
// A host is a name, an IPv4 address or an IPv6 address in brackets; the port
// is 9042 unless given, and the same for all. The parameters:
//
//	consistency  of reads of blobs; default local_one
//	write        consistency of writes of blobs; default local_quorum
//	serial       serial or local_serial, of the catalog; default serial
//	dc           datacenter to prefer; default that of the first host that answers
//	rf           replicas in that datacenter of a keyspace that is yet to be made,
//	             where store init is given no replication
//	conns        connections to each host; default 4 to 32 for all hosts of the
//	             datacenter together, the more the longer a host takes to answer,
//	             and 2 to each where that is more
//	keys         blobs that one statement asks for at most; 1: each is asked for by
//	             itself; default 16, and 1 where hosts have shards
//	proto        version of the native protocol, 3 or 4; default 4
//	timeout      of one request; default 10s
//	connect      timeout of making a connection; default 5s
//	user         user name
//	password_file  file whose first line is the password
//	tls          1: encrypt; on by itself if ca, cert, key or server_name is given
//	ca           file with the authorities that sign servers' certificates; default the system's
//	cert, key    files with the client's certificate and its key
//	server_name  name that the servers' certificates must have; default the
//	             address that each was reached at
//	verify       0: accept any server. For tests only
type Config struct {
	Hosts    []string // names or addresses, without ports
	Port     int
	Keyspace string

	Read, Write gocql.Consistency
	LocalSerial bool
	DC          string
	RF          int
	Conns       int // per host; 0 for a number that suits the hosts and the latency
	Keys        int // per statement; 0 for a number that suits the hosts
	Proto       int
	Timeout     time.Duration
	Connect     time.Duration

	User         string
	PasswordFile string

	TLS           bool
	CA, Cert, Key string
	ServerName    string
	NoVerify      bool
}

const (
	defaultPort = 9042
	// mostConns is the most connections to all nodes of the datacenter together. A connection carries at most a
	// window per round trip, which is limited to 6 MiB by Linux's defaults, or half of that if the kernel reserves
	// the other half of the buffer: 40 or 20 MB/s with a round trip of 150 ms. So 32 connections carry at least 640
	// MB/s. They also begin with 32 times TCP's initial window together, which saves five doublings, each a round
	// trip, of a slow start.
	mostConns = 32
	// A near host gets fewer, because each connection costs memory. The driver keeps
	// buffers of up to 1 MiB per connection and CPU, and allocates those again that were
	// not used between two garbage collections. connPer is the part of a node's answer
	// time that justifies one connection.
	connPer               = time.Millisecond
	nearConns             = 4
	nearConnsPerProcessor = 2
	// leastConns prevents that the loss of one connection, or a long response, stops a host.
	leastConns     = 2
	defaultTimeout = 10 * time.Second
	defaultConnect = 5 * time.Second
)

// keyspaceName matches names of keyspaces that Cassandra takes without quotes.
var keyspaceName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,47}$`)

// hostName is a DNS name or an IPv4 address.
var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?$`)

// IsURI reports whether s is the address of a store of this kind.
func IsURI(s string) bool { return strings.HasPrefix(s, Scheme) }

// ParseURI parses the address of a store. An error is a [schema.FieldError] that names the parameter.
func ParseURI(uri string) (*Config, error) {
	rest, ok := strings.CutPrefix(uri, Scheme)
	if !ok {
		scheme, _, _ := strings.Cut(uri, ":")
		return nil, bad("scheme", scheme, "cql://HOST[:PORT]/KEYSPACE")
	}
	rest, query, _ := strings.Cut(rest, "?")
	if strings.Contains(query, "#") || strings.Contains(rest, "#") {
		return nil, bad("address", "a fragment", "none: # must be written %23")
	}
	hosts, keyspace, _ := strings.Cut(rest, "/")
	if strings.Contains(hosts, "@") { // the message does not repeat it, because it may hold a password
		return nil, bad("user", "credentials before the host",
			"the parameter user, and the password in password_file, "+EnvPassword+" or "+EnvPasswordFile)
	}
	c := &Config{
		Port: defaultPort, Keyspace: keyspace,
		Read: gocql.LocalOne, Write: gocql.LocalQuorum,
		Proto:   4,
		Timeout: defaultTimeout, Connect: defaultConnect,
	}
	if err := c.parseHosts(hosts); err != nil {
		return nil, err
	}
	if !keyspaceName.MatchString(keyspace) {
		return nil, bad("keyspace", keyspace, "a lower-case letter, then up to 47 lower-case letters, digits and "+
			"underscores")
	}
	if strings.HasPrefix(keyspace, "system") {
		return nil, bad("keyspace", keyspace, "a keyspace that is not the server's own")
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, bad("parameters", "", "NAME=VALUE, joined by &, with special characters written as %XX")
	}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names) // so that the first of several mistakes is always the same
	for _, name := range names {
		// A password in the address would appear in logs and process lists, so such names
		// are refused.
		set, ok := parameters[name]
		switch {
		case strings.Contains(strings.ToLower(name), "password") && !ok:
			return nil, bad(quoted(name), "a password in the address", "password_file, "+EnvPassword+" or "+
				EnvPasswordFile)
		case !ok:
			want := "one of " + strings.Join(parameterNames(), ", ")
			if near := schema.Nearest(name, parameterNames()); near != "" {
				want = fmt.Sprintf("%s (did you mean %s?)", want, near)
			}
			return nil, &schema.FieldError{Field: "parameters", Got: quoted(name), Want: want}
		case len(values[name]) > 1:
			return nil, bad(name, fmt.Sprintf("%d values", len(values[name])), "one value")
		}
		if want := set(c, values[name][0]); want != "" {
			return nil, &schema.FieldError{Field: name, Got: quoted(values[name][0]), Want: want}
		}
	}
	return c, c.check()
}

// check checks combinations of parameters.
func (c *Config) check() error {
	if (c.Cert == "") != (c.Key == "") {
		return bad("cert", "only one of cert and key", "both or neither")
	}
	secure := c.CA != "" || c.Cert != "" || c.ServerName != "" || c.NoVerify
	if secure && !c.TLS {
		return bad("tls", "0", "1, since ca, cert, key, server_name or verify is given")
	}
	return nil
}

// connsPerHost is the number of connections per host, given the number of hosts and the answer time of the one asked
// first.
func (c *Config) connsPerHost(hosts int, answered time.Duration) int {
	if c.Conns > 0 {
		return c.Conns
	}
	// The number is for all hosts of the datacenter together, and is divided among them.
	near := max(nearConns, nearConnsPerProcessor*runtime.GOMAXPROCS(0), int(answered/connPer))
	return max(leastConns, (min(mostConns, near)+hosts-1)/max(1, hosts))
}

// parseHosts parses the list of hosts into Hosts and Port.
func (c *Config) parseHosts(list string) error {
	const want = "HOST[:PORT], several joined by commas"
	port := ""
	for _, s := range strings.Split(list, ",") {
		host, p := s, ""
		if strings.HasPrefix(s, "[") || strings.Contains(s, ":") {
			var err error
			if strings.HasSuffix(s, "]") {
				host = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
			} else if host, p, err = net.SplitHostPort(s); err != nil || p == "" {
				return bad("host", s, want)
			}
		}
		if ip := net.ParseIP(host); ip == nil && !hostName.MatchString(host) ||
			strings.Contains(host, ":") != strings.HasPrefix(s, "[") {
			return bad("host", s, want)
		}
		if p != "" {
			n, err := strconv.ParseUint(p, 10, 16)
			if err != nil || n == 0 {
				return bad("port", p, "1 to 65535")
			}
			if port != "" && p != port {
				return bad("port", p, "the same port for every host, here "+port)
			}
			port, c.Port = p, int(n)
		}
		if slices.Contains(c.Hosts, host) {
			return bad("host", s, "each host once")
		}
		c.Hosts = append(c.Hosts, host)
	}
	return nil
}

// parameters set a value, or return what they want instead.
var parameters = map[string]func(c *Config, value string) (want string){
	"consistency": func(c *Config, v string) string { return consistency(&c.Read, v) },
	"write":       func(c *Config, v string) string { return consistency(&c.Write, v) },
	"serial": func(c *Config, v string) string {
		c.LocalSerial = strings.EqualFold(v, "local_serial")
		if !c.LocalSerial && !strings.EqualFold(v, "serial") {
			return "serial or local_serial"
		}
		return ""
	},
	"dc": func(c *Config, v string) string { return text(&c.DC, v, "the name of a datacenter") },
	"rf": func(c *Config, v string) string { return integer(&c.RF, v, 1, 99) },
	"conns": func(c *Config, v string) string {
		return integer(&c.Conns, v, 1, 256)
	},
	"keys":  func(c *Config, v string) string { return integer(&c.Keys, v, 1, 64) },
	"proto": func(c *Config, v string) string { return integer(&c.Proto, v, 3, 4) },
	"timeout": func(c *Config, v string) string {
		return duration(&c.Timeout, v, 10*time.Millisecond, time.Hour)
	},
	"connect": func(c *Config, v string) string {
		return duration(&c.Connect, v, 10*time.Millisecond, time.Hour)
	},
	"user":          func(c *Config, v string) string { return text(&c.User, v, "a user name") },
	"password_file": func(c *Config, v string) string { return text(&c.PasswordFile, v, "the path of a file") },
	"tls":           func(c *Config, v string) string { return flag(&c.TLS, v) },
	"ca":            func(c *Config, v string) string { return secured(c, &c.CA, v, "the path of a file") },
	"cert":          func(c *Config, v string) string { return secured(c, &c.Cert, v, "the path of a file") },
	"key":           func(c *Config, v string) string { return secured(c, &c.Key, v, "the path of a file") },
	"server_name":   func(c *Config, v string) string { return secured(c, &c.ServerName, v, "a host name") },
	"verify": func(c *Config, v string) string {
		verify := true
		want := flag(&verify, v)
		c.NoVerify = !verify
		return want
	},
}

// parameterNames lists the names of all parameters, sorted.
func parameterNames() []string {
	names := make([]string, 0, len(parameters))
	for name := range parameters {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// consistencies are the levels for both reads and writes.
var consistencies = []gocql.Consistency{gocql.LocalOne, gocql.One, gocql.Two, gocql.Three, gocql.LocalQuorum,
	gocql.Quorum, gocql.All}

// consistency parses a consistency level. Like the parsers below, it returns what would
// be right, or "" if the value is.
func consistency(c *gocql.Consistency, v string) string {
	var names []string
	for _, level := range consistencies {
		if strings.EqualFold(level.String(), v) {
			*c = level
			return ""
		}
		names = append(names, strings.ToLower(level.String()))
	}
	return "one of " + strings.Join(names, ", ")
}

// text parses a text without control characters.
func text(s *string, v, want string) string {
	if v == "" || strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return want
	}
	*s = v
	return ""
}

// secured is a text parameter that implies TLS.
func secured(c *Config, s *string, v, want string) string {
	c.TLS = true
	return text(s, v, want)
}

// integer parses an integer in a range.
func integer(n *int, v string, least, most int) string {
	got, err := strconv.Atoi(v)
	if err != nil || got < least || got > most {
		return fmt.Sprintf("%d to %d", least, most)
	}
	*n = got
	return ""
}

// duration parses a duration in a range.
func duration(d *time.Duration, v string, least, most time.Duration) string {
	got, err := time.ParseDuration(v)
	if err != nil || got < least || got > most {
		return fmt.Sprintf("a duration such as 10s or 500ms, from %v to %v", least, most)
	}
	*d = got
	return ""
}

// flag parses a switch.
func flag(b *bool, v string) string {
	switch v {
	case "1", "true":
		*b = true
	case "0", "false":
		*b = false
	default:
		return "1 or 0"
	}
	return ""
}

// bad is the error of a parameter, with the value quoted if it is one word.
func bad(field, got, want string) error {
	if field != "parameters" && got != "" && !strings.Contains(got, " ") {
		got = quoted(got)
	}
	return &schema.FieldError{Field: field, Got: got, Want: want}
}

// quoted shortens and quotes user input.
func quoted(s string) string {
	const most = 60
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strconv.Quote(s)
}

// String is the address without parameters at their defaults. It holds no password, because an address cannot.
func (c *Config) String() string {
	hosts := make([]string, len(c.Hosts))
	for i, h := range c.Hosts {
		hosts[i] = net.JoinHostPort(h, strconv.Itoa(c.Port))
	}
	q := url.Values{}
	set := func(name, value string, isDefault bool) {
		if !isDefault {
			q.Set(name, value)
		}
	}
	set("consistency", strings.ToLower(c.Read.String()), c.Read == gocql.LocalOne)
	set("write", strings.ToLower(c.Write.String()), c.Write == gocql.LocalQuorum)
	set("serial", "local_serial", !c.LocalSerial)
	set("dc", c.DC, c.DC == "")
	set("rf", strconv.Itoa(c.RF), c.RF == 0)
	set("conns", strconv.Itoa(c.Conns), c.Conns == 0)
	set("keys", strconv.Itoa(c.Keys), c.Keys == 0)
	set("proto", strconv.Itoa(c.Proto), c.Proto == 4)
	set("timeout", c.Timeout.String(), c.Timeout == defaultTimeout)
	set("connect", c.Connect.String(), c.Connect == defaultConnect)
	set("user", c.User, c.User == "")
	set("password_file", c.PasswordFile, c.PasswordFile == "")
	set("tls", "1", !c.TLS)
	set("ca", c.CA, c.CA == "")
	set("cert", c.Cert, c.Cert == "")
	set("key", c.Key, c.Key == "")
	set("server_name", c.ServerName, c.ServerName == "")
	set("verify", "0", !c.NoVerify)
	s := Scheme + strings.Join(hosts, ",") + "/" + c.Keyspace
	if len(q) > 0 {
		s += "?" + q.Encode()
	}
	return s
}

// Environment variables with the credentials, used if the address names none.
const (
	EnvUser         = "BOWSTRING_CQL_USER"
	EnvPassword     = "BOWSTRING_CQL_PASSWORD"
	EnvPasswordFile = "BOWSTRING_CQL_PASSWORD_FILE"
)

// credentials finds the user and the password. It keeps them out of c, because a Config may be printed.
func (c *Config) credentials() (user, password string, err error) {
	user = c.User
	if user == "" {
		user = os.Getenv(EnvUser)
	}
	file := c.PasswordFile
	fromEnv := os.Getenv(EnvPassword)
	if file == "" {
		file = os.Getenv(EnvPasswordFile)
		if file != "" && fromEnv != "" {
			return "", "", bad(EnvPassword, "set together with "+EnvPasswordFile, "one of the two")
		}
	}
	if file == "" {
		password = fromEnv
	} else {
		data, err := os.ReadFile(file)
		if err != nil {
			return "", "", fmt.Errorf("%w: password file: %w", schema.ErrInvalid, err)
		}
		password, _, _ = strings.Cut(string(data), "\n")
		password = strings.TrimSuffix(password, "\r")
		if password == "" {
			return "", "", fmt.Errorf("%w: password file %s: its first line is empty", schema.ErrInvalid, file)
		}
	}
	switch {
	case user == "" && password != "":
		return "", "", bad("user", "a password without a user", "the parameter user, or "+EnvUser)
	case user != "" && password == "":
		return "", "", bad("password_file", "user "+quoted(user)+" without a password", "password_file, "+EnvPassword+
			" or "+EnvPasswordFile)
	}
	return user, password, nil
}
