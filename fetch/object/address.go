package object

import (
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"bowstring/schema"
)

// Schemes of the URLs that Open accepts.
const (
	schemeS3    = "s3"
	schemeGCS   = "gs"
	schemeAzure = "az"
	schemeFile  = "file"
	schemeHTTP  = "http"
	schemeHTTPS = "https"
)

// Settings of a bucket's URL, behind "?". They are part of the bucket's name: two URLs
// with different settings are two buckets.
const (
	// setEndpoint is the URL of a server that is not the cloud's own: http://host:port,
	// for Azurite with a path.
	setEndpoint = "endpoint"
	// setRegion is the region of an S3 bucket.
	setRegion = "region"
	// setStyle is "path" or "virtual": whether an S3 bucket's name is in the path or in
	// the host's name.
	setStyle = "style"
	// setAnonymous is "true" if requests are not signed.
	setAnonymous = "anonymous"
	// setRequesterPays is "true" if the caller's account pays for requests.
	setRequesterPays = "requester-pays"
	// setUserProject is the project that pays for requests to a bucket of Google Cloud Storage.
	setUserProject = "user-project"
)

// settingsOf lists the settings of each scheme, in the order in which URLs are written.
var settingsOf = map[string][]string{
	schemeS3:    {setEndpoint, setRegion, setStyle, setAnonymous, setRequesterPays},
	schemeGCS:   {setEndpoint, setAnonymous, setUserProject},
	schemeAzure: {setEndpoint, setAnonymous},
}

// address is the parsed URL of a bucket.
type address struct {
	scheme   string
	name     string // of the bucket; Azure: ACCOUNT/CONTAINER, web server: HOST, directory: its path
	settings map[string]string
}

// SplitURL splits the URL of a place in a bucket into the bucket's URL, as Open accepts
// it, and the prefix of the place's keys. It contacts no server and reads no file.
//
//	s3://BUCKET/PREFIX?endpoint=http://HOST:PORT&region=R&style=path&anonymous=true&requester-pays=true
//	gs://BUCKET/PREFIX?endpoint=…&anonymous=true&user-project=PROJECT
//	az://ACCOUNT/CONTAINER/PREFIX?endpoint=…&anonymous=true
//	https://HOST/PREFIX
//	file:///DIRECTORY
//
// Prefixes of s3, gs and az are taken literally, without percent-decoding: keys may
// contain "%". The whole path of a file URL is the bucket.
func SplitURL(raw string) (bucket, prefix string, err error) {
	a, prefix, err := parseURL(raw)
	if err != nil {
		return "", "", err
	}
	return a.String(), prefix, nil
}

// IsURL reports whether a text has the form of a bucket's URL. Commands use it to
// distinguish URLs from paths.
func IsURL(raw string) bool {
	scheme, _, found := strings.Cut(raw, "://")
	return found && slices.Contains([]string{schemeS3, schemeGCS, schemeAzure, schemeFile, schemeHTTP, schemeHTTPS},
		scheme)
}

// parseURL parses a URL. Its errors name only the scheme, because the rest may contain a
// secret.
func parseURL(raw string) (a address, prefix string, err error) {
	scheme, rest, found := strings.Cut(raw, "://")
	if !found || !IsURL(raw) {
		return a, "", fmt.Errorf("%w: a bucket's URL begins with s3://, gs://, az://, file://, http:// or https://",
			schema.ErrInvalid)
	}
	a.scheme = scheme
	switch scheme {
	case schemeFile:
		return a.parseFile(raw)
	case schemeHTTP, schemeHTTPS:
		return a.parseWeb(raw)
	}
	rest, query, _ := strings.Cut(rest, "?")
	a.name, prefix, _ = strings.Cut(rest, "/")
	if scheme == schemeAzure {
		container, behind, _ := strings.Cut(prefix, "/")
		if container == "" {
			return a, "", fmt.Errorf("%w: the URL names no container: want az://ACCOUNT/CONTAINER", schema.ErrInvalid)
		}
		prefix = behind
		if err := checkName(scheme, a.name); err != nil {
			return a, "", err
		}
		a.name += "/" + container
		err = checkName(scheme, container)
	} else {
		err = checkName(scheme, a.name)
	}
	if err == nil {
		err = a.parseSettings(query)
	}
	return a, prefix, err
}

// checkName refuses names that no bucket has, among them user:password@host.
func checkName(scheme, name string) error {
	if strings.Contains(name, "@") {
		return fmt.Errorf("%w: the URL has user or password before '@': give credentials by the environment",
			schema.ErrInvalid)
	}
	for _, c := range []byte(name) {
		if c == '/' || c == '~' || c != '$' && !unreserved(c) {
			return fmt.Errorf("%w: %s://%s: %q cannot be in the name of a bucket", schema.ErrInvalid, scheme, name, c)
		}
	}
	switch {
	case name == "":
		return fmt.Errorf("%w: the URL names no bucket: want %s://BUCKET", schema.ErrInvalid, scheme)
	case name == "." || name == "..":
		return fmt.Errorf("%w: %q is no name of a bucket", schema.ErrInvalid, name)
	case scheme == schemeS3 && (strings.HasSuffix(name, "--x-s3") || strings.HasSuffix(name, "--xa-s3")):
		return fmt.Errorf("%w: %s is a directory bucket (S3 Express One Zone): it has sessions of its own and lists without "+
			"order; copy the data to a general purpose bucket", schema.ErrNotSupported, name)
	}
	return nil
}

// parseSettings parses and checks the query of a URL. Its errors name no value, which may
// be a secret.
func (a *address) parseSettings(query string) error {
	if query == "" {
		return nil
	}
	a.settings = map[string]string{}
	for part := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(part, "=")
		value, err := url.QueryUnescape(value)
		if err != nil || value == "" {
			return fmt.Errorf("%w: a setting in the URL of %s://%s has no value that can be read", schema.ErrInvalid, a.scheme,
				a.name)
		}
		if !slices.Contains(settingsOf[a.scheme], key) {
			return fmt.Errorf("%w: the URL of %s://%s has a setting that is none of %s", schema.ErrInvalid, a.scheme, a.name,
				strings.Join(settingsOf[a.scheme], ", "))
		}
		bad := ""
		switch key {
		case setEndpoint:
			u, err := parseEndpoint(value)
			if err != nil {
				return err
			}
			value = u.String()
		case setStyle:
			if value != "path" && value != "virtual" {
				bad = "path or virtual"
			}
		case setAnonymous, setRequesterPays:
			if value != "true" && value != "false" {
				bad = "true or false"
			}
		case setUserProject:
			if !plain(value) {
				bad = "the id of a project"
			}
		case setRegion:
			if strings.ContainsFunc(value, func(c rune) bool {
				return (c < 'a' || c > 'z') && (c < '0' || c > '9') &&
					c != '-'
			}) {
				bad = "a region such as eu-central-1"
			}
		}
		if bad != "" {
			return fmt.Errorf("%w: the setting %s of %s://%s: want %s", schema.ErrInvalid, key, a.scheme, a.name, bad)
		}
		if value != "false" {
			a.settings[key] = value
		}
	}
	return nil
}

// parseEndpoint parses the URL of a server, and brings it to one form.
func parseEndpoint(value string) (*url.URL, error) {
	u, err := url.Parse(value)
	if err != nil || (u.Scheme != schemeHTTP && u.Scheme != schemeHTTPS) || u.Host == "" || u.User != nil ||
		u.RawQuery != "" ||
		u.Fragment != "" {
		return nil, fmt.Errorf("%w: an endpoint is http://HOST:PORT or https://HOST:PORT, without user and query",
			schema.ErrInvalid)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	u.Host = strings.ToLower(u.Host)
	u.RawPath = ""
	return u, nil
}

// parseFile parses file:///DIRECTORY.
func (a address) parseFile(raw string) (address, string, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return a, "", fmt.Errorf("%w: the file URL cannot be read: %% stands before two hexadecimal digits",
			schema.ErrInvalid)
	case u.Host != "" && u.Host != "localhost":
		return a, "", fmt.Errorf("%w: a file URL names no host: want file:///DIRECTORY", schema.ErrInvalid)
	case u.RawQuery != "" || u.Fragment != "":
		return a, "", fmt.Errorf("%w: a file URL has no settings; ? is %%3F in it, and # is %%23", schema.ErrInvalid)
	case !filepath.IsAbs(u.Path):
		return a, "", fmt.Errorf("%w: a file URL has the directory's whole path: file:///DIRECTORY", schema.ErrInvalid)
	}
	a.name = filepath.Clean(u.Path)
	return a, "", nil
}

// parseWeb parses the URL of a web server; its path is the prefix.
func (a address) parseWeb(raw string) (address, string, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return a, "", fmt.Errorf("%w: the URL of the web server cannot be read", schema.ErrInvalid)
	case u.User != nil:
		return a, "", fmt.Errorf("%w: the URL of web server %s has user or password: those are not supported",
			schema.ErrInvalid, u.Host)
	case u.RawQuery != "" || u.Fragment != "":
		return a, "", fmt.Errorf("%w: the URL of web server %s has a query: want https://HOST/PATH (signed URLs end, "+
			"and are "+
			"secrets)", schema.ErrInvalid, u.Host)
	case u.Host == "":
		return a, "", fmt.Errorf("%w: the URL names no web server: want https://HOST/PATH", schema.ErrInvalid)
	}
	a.name = strings.ToLower(u.Host)
	return a, strings.TrimPrefix(u.Path, "/"), nil
}

// String is the bucket's URL: without prefix and secrets, and always in the same form,
// since buckets are compared by it.
func (a address) String() string {
	if a.scheme == schemeFile {
		return (&url.URL{Scheme: schemeFile, Path: a.name}).String()
	}
	var b strings.Builder
	b.WriteString(a.scheme + "://" + a.name)
	sep := byte('?')
	for _, key := range settingsOf[a.scheme] {
		if v := a.settings[key]; v != "" {
			b.WriteByte(sep)
			sep = '&'
			// ":" and "/" are allowed in a query, and easier to read.
			b.WriteString(key + "=" + strings.NewReplacer("%3A", ":", "%2F", "/").Replace(url.QueryEscape(v)))
		}
	}
	return b.String()
}

// endpoint is the URL of the server that the bucket's URL names; nil if it names none.
func (a address) endpoint() *url.URL {
	v := a.settings[setEndpoint]
	if v == "" {
		return nil
	}
	u, _ := parseEndpoint(v)
	return u
}

// put adds a setting that was found elsewhere, so that the URL names it.
func (a *address) put(key, value string) {
	if a.settings == nil {
		a.settings = map[string]string{}
	}
	a.settings[key] = value
}
