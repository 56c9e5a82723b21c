package object

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"bowstring/schema"
)

// azure is the dialect of Azure Blob Storage. A version is the ETag. Its lists can only
// begin at a prefix, so keys up to ListOptions.After are listed and dropped by
// remote.List.
type azure struct {
	account string
	url     string
	base    url.URL    // of the container
	key     []byte     // shared key, or nil
	sas     url.Values // shared access signature, or nil
	tokens  *tokens
	skew    atomic.Int64 // server's clock minus the machine's, in nanoseconds
}

// azureVersion is the version of the protocol that requests name.
var azureVersion = []string{"2023-11-03"}

// openAzure takes the shared key, the shared access signature or an identity, in this
// order, from opts or the environment.
func openAzure(a address, opts Options) (Bucket, error) {
	transport, err := newTransport(opts)
	if err != nil {
		return nil, err
	}
	account, container, _ := strings.Cut(a.name, "/")
	d := &azure{account: account, url: a.String()}
	if u := a.endpoint(); u != nil {
		d.base = *u
	} else {
		d.base = url.URL{Scheme: schemeHTTPS, Host: account + ".blob.core.windows.net"}
	}
	d.base.Path += "/" + container
	key, sas := os.Getenv("AZURE_STORAGE_KEY"), os.Getenv("AZURE_STORAGE_SAS_TOKEN")
	if name := os.Getenv("AZURE_STORAGE_ACCOUNT"); name != "" && name != account {
		key, sas = "", "" // they belong to another account
	}
	if opts.Keys != nil {
		key, sas = opts.Keys.Secret, opts.Keys.Token
	}
	d.tokens = &tokens{find: findAzure}
	switch {
	case a.settings[setAnonymous] != "":
		d.tokens.anonymous = true
	case sas != "":
		if d.sas, err = url.ParseQuery(strings.TrimPrefix(sas, "?")); err != nil {
			return nil, errorf(schema.ErrInvalid, "the shared access signature for %s is no query of a URL", a)
		}
	case key != "":
		if d.key, err = base64.StdEncoding.DecodeString(key); err != nil {
			return nil, errorf(schema.ErrInvalid, "the shared key for %s is not in base64", a)
		}
	}
	return &remote{url: d.url, dialect: d, transport: transport, ranges: true, forbidden: `\`}, nil
}

// findAzure finds an identity: of the environment, the workload, the machine, or the
// command line.
func findAzure(context.Context) (func(context.Context) (string, error), error) {
	c, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (string, error) {
		// The library caches the token, and renews it at least five minutes before its
		// end.
		t, err := c.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{"https://storage.azure.com/.default"}})
		var refused *azidentity.AuthenticationFailedError
		if err != nil && !errors.As(err, &refused) && ctx.Err() == nil {
			return "", errNoneFound
		}
		return t.Token, err
	}, nil
}

// target implements dialect.
func (d *azure) target(r *request) url.URL {
	u := d.base
	if r.key != "" {
		withKey(&u, r.key)
	}
	return u
}

// wanted implements dialect.
func (d *azure) wanted(r *request, v schema.ObjectVersion) error {
	if v.ETag == "" {
		return errorf(schema.ErrInvalid, "object %q of %s: a version is an ETag there, not %s", r.key, d.url, v)
	}
	r.header["If-Match"] = []string{quote(v.ETag)}
	return nil
}

// condition implements dialect.
func (d *azure) condition(r *request, c Condition) error {
	r.header["X-Ms-Blob-Type"] = []string{"BlockBlob"}
	return r.ifETag(c, d.url)
}

// version implements dialect.
func (d *azure) version(h http.Header) schema.ObjectVersion {
	return schema.ObjectVersion{ETag: unquote(first(h, "Etag"))}
}

// made implements dialect.
func (d *azure) made(h http.Header, _ []byte) (schema.ObjectVersion, error) { return d.version(h), nil }

// page implements dialect.
func (d *azure) page(r *request, opts ListOptions, token string) {
	r.query.Set("restype", "container")
	r.query.Set("comp", "list")
	if opts.Prefix != "" {
		r.query.Set("prefix", opts.Prefix)
	}
	if opts.Delimiter != "" {
		r.query.Set("delimiter", opts.Delimiter)
	}
	if token != "" {
		r.query.Set("marker", token)
	}
}

// parse implements dialect.
func (d *azure) parse(body []byte, date time.Time) (page, error) { return parseXML(body, date) }

// sign implements dialect.
func (d *azure) sign(ctx context.Context, r *http.Request, body []byte) error {
	at := time.Now().Add(time.Duration(d.skew.Load())).UTC().Format(http.TimeFormat)
	r.Header["X-Ms-Version"], r.Header["X-Ms-Date"] = azureVersion, []string{at}
	switch {
	case d.key != nil:
		r.Header["Authorization"] = []string{"SharedKey " + d.account + ":" + d.signature(r, len(body))}
		return nil
	case d.sas != nil:
		q := r.URL.Query()
		for k, v := range d.sas {
			q[k] = v
		}
		r.URL.RawQuery = q.Encode()
		return nil
	}
	token, err := d.tokens.get(ctx)
	if err != nil {
		return errorf(schema.ErrDenied, "credentials of Azure for %s: %v", d.url, err)
	}
	if token != "" {
		r.Header["Authorization"] = []string{"Bearer " + token}
	}
	return nil
}

// signature is that of the scheme SharedKey:
// https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key.
func (d *azure) signature(r *http.Request, length int) string {
	var b strings.Builder
	// Content-Encoding and Content-Language are empty. Content-Length is empty if it is
	// 0.
	b.WriteString(r.Method + "\n\n\n")
	if length > 0 {
		b.WriteString(strconv.Itoa(length))
	}
	b.WriteString("\n\n")
	for _, name := range []string{"Content-Type", "Date", "If-Modified-Since", "If-Match", "If-None-Match",
		"If-Unmodified-Since",
		"Range"} {
		b.WriteString(first(r.Header, name) + "\n")
	}
	var names []string
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Ms-") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		b.WriteString(strings.ToLower(name) + ":" + first(r.Header, name) + "\n")
	}
	// The canonical resource: account and path, then each parameter of the query on a
	// line of its own, sorted.
	b.WriteString("/" + d.account + r.URL.EscapedPath())
	q := r.URL.Query()
	names = names[:0]
	for name := range q {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		b.WriteString("\n" + name + ":" + q.Get(name))
	}
	mac := hmac.New(sha256.New, d.key)
	mac.Write([]byte(b.String()))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// refused implements dialect.
func (d *azure) refused(r *request, a *answer) (again bool, err error) {
	switch {
	case a.code == "BlobArchived":
		return false, says(d.url, schema.ErrNotSupported, r, a, "it is archived: bring it back to an online tier first")
	case a.code == "BlobUsesCustomerSpecifiedEncryption":
		return false, says(d.url, schema.ErrNotSupported, r, a, "it is encrypted with a key that its owner has to send")
	case a.status == http.StatusForbidden && d.key != nil && d.follow(a.header.Get("Date")):
		return true, says(d.url, schema.ErrDenied, r, a, "the machine's clock is wrong")
	case a.status == http.StatusForbidden || a.status == http.StatusUnauthorized,
		// Azure does not reveal to a caller without credentials that the resource exists.
		a.status == http.StatusNotFound && a.code == "ResourceNotFound":
		return false, says(d.url, schema.ErrDenied, r, a, d.tokens.hint())
	}
	return false, nil
}

// follow corrects the clock of requests by the server's, if the difference is large
// enough to have the request refused.
func (d *azure) follow(date string) bool {
	at, err := http.ParseTime(date)
	if err != nil {
		return false
	}
	skew := time.Until(at)
	if skew.Abs() > maxSkew || (skew-time.Duration(d.skew.Load())).Abs() < 14*time.Minute {
		return false
	}
	d.skew.Store(int64(skew))
	return true
}
