package object

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"bowstring/schema"
)

// gcs is the dialect of Google Cloud Storage. Its XML API reads and deletes objects,
// because it serves ranges directly. Its JSON API writes and lists them, because the
// emulator of the tests knows conditional writes and pages of lists only there. A version
// is a generation: the two APIs have different ETags.
type gcs struct {
	bucket  string
	url     string
	base    url.URL
	project []string // x-goog-user-project: the project that pays, or nil
	tokens  *tokens
}

// gcsScope is the OAuth scope of tokens: reading and writing objects.
const gcsScope = "https://www.googleapis.com/auth/devstorage.read_write"

func openGCS(a address, opts Options) (Bucket, error) {
	transport, err := newTransport(opts)
	if err != nil {
		return nil, err
	}
	d := &gcs{bucket: a.name}
	// The emulator becomes part of the bucket's URL, so that it is never confused with
	// the bucket of the cloud.
	if host := os.Getenv("STORAGE_EMULATOR_HOST"); host != "" && a.endpoint() == nil {
		if !strings.Contains(host, "://") {
			host = "http://" + host
		}
		u, err := parseEndpoint(host)
		if err != nil {
			return nil, errorf(schema.ErrInvalid, "STORAGE_EMULATOR_HOST is no host: want HOST:PORT or http://HOST:PORT")
		}
		a.put(setEndpoint, u.String())
		a.put(setAnonymous, "true") // as Google's own libraries do
	}
	if u := a.endpoint(); u != nil {
		d.base = *u
	} else {
		d.base = url.URL{Scheme: schemeHTTPS, Host: "storage.googleapis.com"}
	}
	if p := a.settings[setUserProject]; p != "" {
		d.project = []string{p}
	}
	d.url = a.String()
	d.tokens = &tokens{find: func(ctx context.Context) (func(context.Context) (string, error), error) {
		return findGoogle(ctx, opts.GoogleFile)
	}}
	switch {
	case opts.Keys != nil:
		d.tokens.fixed = opts.Keys.Token
	case a.settings[setAnonymous] != "":
		d.tokens.anonymous = true
	}
	return &remote{url: d.url, dialect: d, transport: transport, ranges: true}, nil
}

// findGoogle finds application default credentials: GOOGLE_APPLICATION_CREDENTIALS,
// gcloud's file, workload identity, the machine's service account. If file is not "", it
// reads that file only.
func findGoogle(ctx context.Context, file string) (func(context.Context) (string, error), error) {
	// The source uses its context for later tokens, after this request has ended.
	ctx = context.WithoutCancel(ctx)
	params := google.CredentialsParams{Scopes: []string{gcsScope}, EarlyTokenRefresh: refreshEarly}
	var c *google.Credentials
	var err error
	if file == "" {
		c, err = google.FindDefaultCredentialsWithParams(ctx, params)
	} else {
		c, err = googleFile(ctx, file, params)
	}
	if err != nil {
		// A file that the user has named must work. Without one, a public bucket can be
		// read without credentials.
		if file != "" {
			return nil, err
		}
		if os.Getenv("GOOGLE_APPLICATION_CREDENTIALS") != "" {
			return nil, err
		}
		return nil, errNoneFound
	}
	source := oauth2.ReuseTokenSourceWithExpiry(nil, c.TokenSource, refreshEarly)
	return func(context.Context) (string, error) {
		t, err := source.Token()
		if err != nil {
			return "", err
		}
		return t.AccessToken, nil
	}, nil
}

// googleFile reads credentials from a file. Its errors contain nothing of the file.
func googleFile(ctx context.Context, file string, params google.CredentialsParams) (*google.Credentials, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, errorf(schema.ErrDenied, "credentials of Google: %v", err)
	}
	var kind struct {
		Type google.CredentialsType `json:"type"`
	}
	if json.Unmarshal(text, &kind) != nil {
		return nil, errorf(schema.ErrDenied, "credentials of Google: %s is no JSON object with a type", file)
	}
	// The type is that of the file: the library refuses to guess it, as some types make
	// requests to URLs in the file.
	c, err := google.CredentialsFromJSONWithTypeAndParams(ctx, text, kind.Type, params)
	if err != nil {
		return nil, errorf(schema.ErrDenied, "credentials of Google: %s cannot be used as they are, of type %q", file, kind.Type)
	}
	return c, nil
}

// target implements dialect. A write is a POST to the JSON API's upload path, a list has
// no key.
func (d *gcs) target(r *request) url.URL {
	u := d.base
	switch {
	case r.method == http.MethodPost:
		u.Path += "/upload/storage/v1/b/" + d.bucket + "/o"
	case r.key == "":
		u.Path += "/storage/v1/b/" + d.bucket + "/o"
	default:
		u.Path += "/" + d.bucket
		withKey(&u, r.key)
	}
	return u
}

// wanted implements dialect.
func (d *gcs) wanted(r *request, v schema.ObjectVersion) error {
	if v.ID == "" {
		return errorf(schema.ErrInvalid, "object %q of %s: a version is a generation there, not %s", r.key, d.url, v)
	}
	r.query = url.Values{"generation": {v.ID}}
	return nil
}

// condition implements dialect.
func (d *gcs) condition(r *request, c Condition) error {
	r.method = http.MethodPost
	r.query = url.Values{"uploadType": {"media"}, "name": {r.key}}
	r.header["Content-Type"] = []string{"application/octet-stream"}
	switch {
	case c.Absent:
		r.query.Set("ifGenerationMatch", "0")
	case c.Version.ID != "":
		r.query.Set("ifGenerationMatch", c.Version.ID)
	case !c.Version.IsZero():
		return errorf(schema.ErrInvalid, "object %q of %s: a conditional write takes the generation, not %s", r.key, d.url,
			c.Version)
	}
	return nil
}

// version implements dialect.
func (d *gcs) version(h http.Header) schema.ObjectVersion {
	return schema.ObjectVersion{ID: first(h, "X-Goog-Generation")}
}

// gcsObject is the JSON API's description of an object. Numbers are strings there.
type gcsObject struct {
	Name, Size, Generation, StorageClass string
	Updated                              time.Time
}

// made implements dialect.
func (d *gcs) made(_ http.Header, body []byte) (schema.ObjectVersion, error) {
	var o gcsObject
	if err := json.Unmarshal(body, &o); err != nil {
		return schema.ObjectVersion{}, err
	}
	return schema.ObjectVersion{ID: o.Generation}, nil
}

// page implements dialect.
func (d *gcs) page(r *request, opts ListOptions, token string) {
	r.query.Set("fields", "prefixes,nextPageToken,items(name,size,generation,storageClass,updated)")
	if opts.Prefix != "" {
		r.query.Set("prefix", opts.Prefix)
	}
	if opts.Delimiter != "" {
		r.query.Set("delimiter", opts.Delimiter)
	}
	if opts.After != "" {
		r.query.Set("startOffset", opts.After)
	}
	if token != "" {
		r.query.Set("pageToken", token)
	}
}

// parse implements dialect.
func (d *gcs) parse(body []byte, date time.Time) (page, error) {
	var l struct {
		Items         []gcsObject
		Prefixes      []string
		NextPageToken string
	}
	if err := json.Unmarshal(body, &l); err != nil {
		return page{}, err
	}
	p := page{entries: make([]Info, 0, len(l.Items)+len(l.Prefixes)), next: l.NextPageToken}
	for i := range l.Items {
		o := &l.Items[i]
		size, err := strconv.ParseInt(o.Size, 10, 64)
		if err != nil {
			return page{}, err
		}
		p.entries = append(p.entries, Info{Key: o.Name, Size: size, Modified: o.Updated, Date: date,
			Class:   class(o.StorageClass),
			Version: schema.ObjectVersion{ID: o.Generation}})
	}
	for _, prefix := range l.Prefixes {
		p.entries = append(p.entries, Info{Key: prefix, Prefix: true, Date: date})
	}
	// The API returns objects and prefixes in two lists.
	p.merge(len(l.Items))
	return p, nil
}

// sign implements dialect.
func (d *gcs) sign(ctx context.Context, r *http.Request, _ []byte) error {
	if d.project != nil {
		r.Header["X-Goog-User-Project"] = d.project
	}
	token, err := d.tokens.get(ctx)
	if err != nil {
		return errorf(schema.ErrDenied, "credentials of Google Cloud for %s: %v", d.url, err)
	}
	if token != "" {
		r.Header["Authorization"] = []string{"Bearer " + token}
	}
	return nil
}

// refused implements dialect.
func (d *gcs) refused(r *request, a *answer) (again bool, err error) {
	if a.status == http.StatusForbidden || a.status == http.StatusUnauthorized {
		return false, says(d.url, schema.ErrDenied, r, a, d.tokens.hint())
	}
	if a.status == http.StatusBadRequest && strings.Contains(a.message, "requester pays") {
		return false, says(d.url, schema.ErrDenied, r, a, "name the project that pays by "+setUserProject)
	}
	return false, nil
}
