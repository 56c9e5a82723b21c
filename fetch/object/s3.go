package object

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"

	"bowstring/schema"
)

const (
	// emptySum is the SHA-256 of no bytes. unsigned replaces the SHA-256 of a body that
	// TLS protects, which saves hashing it.
	emptySum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	unsigned = "UNSIGNED-PAYLOAD"
	// refreshEarly is how long before their end credentials are renewed.
	refreshEarly = 5 * time.Minute
	// maxSkew is how wrong the machine's clock may be to be corrected. A larger
	// difference is an error of the server's clock.
	maxSkew = 14 * 24 * time.Hour
)

// s3 is the dialect of S3 and of compatible servers (MinIO, Ceph, R2). Requests are
// signed with AWS Signature Version 4. The region and the clock are learned from
// refusals, so that a bucket's URL needs neither.
type s3 struct {
	bucket   string
	url      string   // of the bucket, for errors
	endpoint *url.URL // nil: the cloud's, by region
	virtual  bool     // the bucket's name is part of the host's name
	pays     []string // x-amz-request-payer, or nil
	keys     *awsKeys
	signer   *v4.Signer
	place    atomic.Pointer[s3Place]
	skew     atomic.Int64 // server's clock minus the machine's, in nanoseconds
}

// s3Place is the server that requests go to. It is replaced as a whole when the region
// changes.
type s3Place struct {
	region string
	base   url.URL // of the bucket: scheme, host, and the path before "/" and the key
}

// openS3 finds region, endpoint and credentials as the AWS command line does: the URL
// first, then environment and profile.
func openS3(ctx context.Context, a address, opts Options) (Bucket, error) {
	load := []func(*config.LoadOptions) error{
		config.WithCredentialsCacheOptions(func(o *aws.CredentialsCacheOptions) {
			o.ExpiryWindow, o.ExpiryWindowJitterFrac = refreshEarly, .5
		}),
	}
	if opts.Profile != "" {
		load = append(load, config.WithSharedConfigProfile(opts.Profile))
	}
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, errorf(schema.ErrInvalid, "settings of AWS for %s: %v", a, err)
	}
	if opts.CAFile == "" {
		opts.CAFile = caBundle(cfg)
	}
	transport, err := newTransport(opts)
	if err != nil {
		return nil, err
	}
	d := &s3{bucket: a.name, signer: v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })}
	if d.endpoint = a.endpoint(); d.endpoint == nil {
		if d.endpoint, err = s3Endpoint(ctx, cfg); err != nil {
			return nil, err
		}
		if d.endpoint != nil {
			a.put(setEndpoint, d.endpoint.String())
		}
	}
	region := a.settings[setRegion]
	if region == "" {
		region = cfg.Region
	}
	if region == "" {
		region = "us-east-1"
	}
	switch a.settings[setStyle] {
	case "virtual":
		d.virtual = true
	case "":
		// The cloud's certificates cover only one label below s3.REGION, so a bucket with
		// dots in its name needs the path style.
		d.virtual = d.endpoint == nil && !strings.Contains(a.name, ".")
	}
	if a.settings[setRequesterPays] != "" {
		d.pays = []string{"requester"}
	}
	d.url = a.String()
	d.keys = newAWSKeys(cfg, a.settings[setAnonymous] != "", opts.Keys)
	d.move(region)
	return &remote{url: d.url, dialect: d, transport: transport, ranges: true}, nil
}

// s3Endpoint is the server for S3 in the environment or in the files of settings; nil if
// they name none.
func s3Endpoint(ctx context.Context, cfg aws.Config) (*url.URL, error) {
	value := ""
	for _, source := range cfg.ConfigSources {
		if s, ok := source.(interface {
			GetServiceBaseEndpoint(ctx context.Context, sdkID string) (string, bool, error)
		}); ok && value == "" {
			if v, found, err := s.GetServiceBaseEndpoint(ctx, "S3"); err == nil && found {
				value = v
			}
		}
	}
	if value == "" && cfg.BaseEndpoint != nil {
		value = *cfg.BaseEndpoint
	}
	if value == "" {
		return nil, nil //nolint:nilnil // nil is the cloud's own
	}
	u, err := parseEndpoint(value)
	if err != nil {
		return nil, fmt.Errorf("AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or endpoint_url of the profile: %w", err)
	}
	return u, nil
}

// caBundle is the file of AWS_CA_BUNDLE or of the profile's ca_bundle; "" if neither names one.
func caBundle(cfg aws.Config) string {
	for _, source := range cfg.ConfigSources {
		switch s := source.(type) {
		case config.EnvConfig:
			if s.CustomCABundle != "" {
				return s.CustomCABundle
			}
		case config.SharedConfig:
			if s.CustomCABundle != "" {
				return s.CustomCABundle
			}
		}
	}
	return ""
}

// move directs requests to a region.
func (d *s3) move(region string) {
	p := &s3Place{region: region}
	if d.endpoint != nil {
		p.base = *d.endpoint
	} else {
		domain := "amazonaws.com"
		if strings.HasPrefix(region, "cn-") {
			domain = "amazonaws.com.cn"
		}
		p.base = url.URL{Scheme: schemeHTTPS, Host: "s3." + region + "." + domain}
	}
	if d.virtual {
		p.base.Host = d.bucket + "." + p.base.Host
	} else {
		p.base.Path += "/" + d.bucket
	}
	d.place.Store(p)
}

// target implements dialect.
func (d *s3) target(r *request) url.URL {
	u := d.place.Load().base
	if r.key != "" {
		withKey(&u, r.key)
	} else if u.Path == "" {
		u.Path = "/"
	}
	return u
}

// withKey appends a key to the path of a URL, encoded as Signature Version 4 requires:
// all characters except letters, digits and "-._~/". net/url would leave more of them as
// they are, and the signature would not match.
func withKey(u *url.URL, key string) {
	if !plain(key) {
		u.RawPath = u.EscapedPath() + "/" + escape(key)
	}
	u.Path += "/" + key
}

// plain reports whether a key needs no encoding.
func plain(key string) bool {
	for i := range len(key) {
		if !unreserved(key[i]) {
			return false
		}
	}
	return true
}

// unreserved reports whether a byte stays unencoded: RFC 3986's unreserved characters and
// "/".
func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == '_' ||
		c == '~' || c == '/'
}

// escape percent-encodes all other bytes of a key.
func escape(key string) string {
	const digits = "0123456789ABCDEF"
	b := make([]byte, 0, len(key)+32)
	for i := range len(key) {
		if c := key[i]; unreserved(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return string(b)
}

// wanted implements dialect.
func (d *s3) wanted(r *request, v schema.ObjectVersion) error {
	if v.ETag != "" {
		r.header["If-Match"] = []string{quote(v.ETag)}
	}
	if v.ID != "" {
		r.query = url.Values{"versionId": {v.ID}}
	}
	return nil
}

// condition implements dialect.
func (d *s3) condition(r *request, c Condition) error { return r.ifETag(c, d.url) }

// version implements dialect.
func (d *s3) version(h http.Header) schema.ObjectVersion {
	v := schema.ObjectVersion{ETag: unquote(first(h, "Etag")), ID: first(h, "X-Amz-Version-Id")}
	if v.ID == "null" { // the bucket stores no versions at present
		v.ID = ""
	}
	return v
}

// first is a header's first value. The name is in canonical form, which saves
// http.Header.Get's conversion of it for each request.
func first(h http.Header, canonical string) string {
	if v := h[canonical]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// made implements dialect.
func (d *s3) made(h http.Header, _ []byte) (schema.ObjectVersion, error) { return d.version(h), nil }

// parse implements dialect.
func (d *s3) parse(body []byte, date time.Time) (page, error) { return parseXML(body, date) }

// page implements dialect. Keys are requested URL-encoded, since XML cannot hold all
// characters that keys may have.
func (d *s3) page(r *request, opts ListOptions, token string) {
	r.query.Set("list-type", "2")
	r.query.Set("encoding-type", "url")
	if opts.Prefix != "" {
		r.query.Set("prefix", opts.Prefix)
	}
	if opts.Delimiter != "" {
		r.query.Set("delimiter", opts.Delimiter)
	}
	if token != "" {
		r.query.Set("continuation-token", token)
	} else if opts.After != "" {
		r.query.Set("start-after", opts.After)
	}
}

// sign implements dialect. A body over plain HTTP is hashed, so that it cannot be changed
// on its way.
func (d *s3) sign(ctx context.Context, r *http.Request, body []byte) error {
	if d.pays != nil {
		r.Header["X-Amz-Request-Payer"] = d.pays
	}
	keys, err := d.keys.get(ctx)
	if err != nil {
		return errorf(schema.ErrDenied, "credentials of AWS for %s: %v", d.url, err)
	}
	if keys == nil {
		return nil
	}
	sum := emptySum
	switch {
	case len(body) == 0:
	case r.URL.Scheme == schemeHTTPS:
		sum = unsigned
	default:
		s := sha256.Sum256(body)
		sum = hex.EncodeToString(s[:])
	}
	r.Header["X-Amz-Content-Sha256"] = []string{sum}
	at := time.Now().Add(time.Duration(d.skew.Load()))
	if err := d.signer.SignHTTP(ctx, *keys, r, sum, "s3", d.place.Load().region, at); err != nil {
		return errorf(schema.ErrInvalid, "%s: a request cannot be signed: %v", d.url, err)
	}
	return nil
}

// refused implements dialect. HEAD has no body with a code, so its refusals are inferred
// from status, clock and credentials.
func (d *s3) refused(r *request, a *answer) (again bool, err error) {
	region := a.header.Get("X-Amz-Bucket-Region")
	if region == "" && (a.code == "AuthorizationHeaderMalformed" || a.code == "PermanentRedirect" ||
		a.code == "IllegalLocationConstraintException") {
		region = a.region
	}
	wrongPlace := a.status/100 == 3 || a.status == http.StatusBadRequest
	switch {
	case wrongPlace && region != "" && region != d.place.Load().region:
		d.move(region)
		return true, says(d.url, schema.ErrInvalid, r, a, "the bucket is in region "+region)
	case a.status/100 == 3:
		hint := "it redirects, to where it does not say"
		if region != "" {
			hint = "it redirects, though requests are for its region " + region
		}
		if to, err := url.Parse(a.header.Get("Location")); err == nil && to.Host != "" {
			hint = fmt.Sprintf("it redirects to %s://%s: give that as %s", to.Scheme, to.Host, setEndpoint)
		}
		return false, says(d.url, schema.ErrInvalid, r, a, hint)
	case a.code == "RequestTimeTooSkewed",
		// HEAD has no body with the code.
		a.code == "" && r.method == http.MethodHead && a.status == http.StatusForbidden && d.far(a.header.Get("Date")):
		return d.follow(a.header.Get("Date")), says(d.url, schema.ErrDenied, r, a, "the machine's clock is wrong")
	case a.code == "ExpiredToken", a.code == "ExpiredTokenException", a.code == "TokenRefreshRequired",
		// HEAD has no body with the code.
		a.code == "" && r.method == http.MethodHead && (a.status == http.StatusBadRequest ||
			a.status == http.StatusForbidden) && d.keys.end():
		return d.keys.renew(), says(d.url, schema.ErrDenied, r, a, "the credentials have expired")
	case a.code == "InvalidObjectState":
		return false, says(d.url, schema.ErrNotSupported, r, a, "it is archived (Glacier): restore it first")
	case a.status == http.StatusBadRequest && strings.Contains(a.message, "Server Side Encryption"):
		return false, says(d.url, schema.ErrNotSupported, r, a, "it is encrypted with a key that its owner has to send "+
			"(SSE-C)")
	case a.code == "NoSuchBucket":
		return false, says(d.url, schema.ErrNotFound, r, a, "")
	case a.code == "SlowDown" && a.status != http.StatusServiceUnavailable:
		return false, &ThrottledError{Bucket: d.url, Key: r.key, Status: a.status}
	case a.status == http.StatusForbidden:
		return false, says(d.url, schema.ErrDenied, r, a, d.keys.hint())
	}
	return false, nil
}

// far reports whether the server's clock differs from that of requests by more than S3
// allows (15 minutes, less a margin).
func (d *s3) far(date string) bool {
	at, err := http.ParseTime(date)
	return err == nil && (time.Until(at)-time.Duration(d.skew.Load())).Abs() > 14*time.Minute
}

// follow corrects the clock of requests by the server's; false if the server's date
// cannot be right.
func (d *s3) follow(date string) bool {
	at, err := http.ParseTime(date)
	if err != nil {
		return false
	}
	skew := time.Until(at)
	if skew.Abs() > maxSkew {
		return false
	}
	d.skew.Store(int64(skew))
	return true
}

// awsKeys are the credentials of S3: explicit ones, none, or those that AWS's library
// finds and renews.
type awsKeys struct {
	anonymous bool
	given     *aws.Credentials
	cache     *aws.CredentialsCache
	// role says that nothing is configured, so that the machine's role is the only source
	// left.
	role bool

	mu      sync.Mutex
	none    error            // why there are no credentials; requests are then not signed
	nextTry time.Time        // when credentials are searched for again
	renewed *aws.Credentials // the credentials that were last dropped as expired

	used atomic.Pointer[aws.Credentials] // credentials of the latest request
}

// newAWSKeys chooses the source of credentials: explicit ones, none if the URL says so,
// or the library's.
func newAWSKeys(cfg aws.Config, anonymous bool, given *Keys) *awsKeys {
	k := &awsKeys{anonymous: anonymous}
	if given != nil {
		k.given = &aws.Credentials{AccessKeyID: given.ID, SecretAccessKey: given.Secret, SessionToken: given.Token}
		return k
	}
	if anonymous || cfg.Credentials == nil {
		k.anonymous = true
		return k
	}
	k.role = aws.IsCredentialsProvider(cfg.Credentials, (*ec2rolecreds.Provider)(nil))
	var ok bool
	if k.cache, ok = cfg.Credentials.(*aws.CredentialsCache); !ok {
		k.cache = aws.NewCredentialsCache(cfg.Credentials)
	}
	return k
}

// get returns credentials, or nil if requests are not signed.
func (k *awsKeys) get(ctx context.Context) (*aws.Credentials, error) {
	if k.given != nil || k.anonymous {
		return k.given, nil
	}
	if k.role {
		k.mu.Lock()
		none := k.none != nil && time.Now().Before(k.nextTry)
		k.mu.Unlock()
		if none {
			return nil, nil
		}
	}
	c, err := k.cache.Retrieve(ctx)
	if err != nil {
		if !k.role || ctx.Err() != nil {
			return nil, err
		}
		// Nothing is configured and the machine has no role. A public bucket can be read
		// without a signature.
		k.mu.Lock()
		k.none, k.nextTry = err, time.Now().Add(refreshEarly)
		k.mu.Unlock()
		return nil, nil
	}
	if last := k.used.Load(); last == nil || last.AccessKeyID != c.AccessKeyID || last.SessionToken != c.SessionToken {
		k.used.Store(&c)
	}
	return &c, nil
}

// end reports whether the credentials may have expired.
func (k *awsKeys) end() bool {
	c := k.used.Load()
	return c != nil && c.CanExpire
}

// renew drops the credentials that a server calls expired, and reports whether new ones
// may be available. Each credentials are dropped once only: many requests fail together,
// and the new ones must not be dropped by the rest of them.
func (k *awsKeys) renew() bool {
	c := k.used.Load()
	if k.cache == nil || c == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.renewed == c {
		return false
	}
	k.renewed = c
	k.cache.Invalidate()
	return true
}

// hint says why a request may have been denied.
func (k *awsKeys) hint() string {
	if k.anonymous {
		return "the request was not signed, as " + setAnonymous + "=true wants"
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.none != nil {
		return "no credentials were found (environment, profiles, role of the machine), so the request was not signed"
	}
	return ""
}
