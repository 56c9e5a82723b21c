package object

import (
	"context"
	"net"

	"bowstring/schema"
)

// Options are the credentials and connections of buckets. The zero value takes everything
// from the environment.
type Options struct {
	// Keys are explicit credentials. If nil, the cloud's own library finds them in the
	// environment.
	Keys *Keys
	// Profile is the section of AWS's files of credentials and settings; "" is that of
	// the environment.
	Profile string
	// GoogleFile is a file of Google Cloud credentials, such as those of a service
	// account. It replaces the machine's credentials.
	GoogleFile string
	// CAFile has certificates of authorities in PEM, in addition to those of the system.
	CAFile string
	// Requests counts and paces the requests of the bucket; nil does neither.
	Requests *Requests
	// Dial opens connections; nil opens TCP connections.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Keys are credentials. They are secrets: String and errors do not show them.
type Keys struct {
	ID     string // S3: the id of the access key
	Secret string // S3: the secret access key; Azure: the account's shared key
	Token  string // S3: the token of a session; Google Cloud Storage: an access token; Azure: a shared access signature
}

// String shows no secret.
func (Keys) String() string { return "(secret)" }

// GoString shows no secret.
func (Keys) GoString() string { return "object.Keys{(secret)}" }

// Open returns the bucket that a URL names: see [SplitURL] for the forms. A URL with a
// prefix is refused. Open does not contact the bucket: the first call shows whether it
// exists.
func Open(ctx context.Context, url string, opts Options) (Bucket, error) {
	a, prefix, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	if prefix != "" {
		return nil, errorf(schema.ErrInvalid, "%s is a bucket; %q behind it is a prefix of keys, which does not belong "+
			"here", a, prefix)
	}
	b, err := open(ctx, a, opts)
	if err != nil || opts.Requests == nil {
		return b, err
	}
	return opts.Requests.Wrap(b), nil
}

func open(ctx context.Context, a address, opts Options) (Bucket, error) {
	switch a.scheme {
	case schemeFile:
		return openDir(a)
	case schemeS3:
		return openS3(ctx, a, opts)
	case schemeGCS:
		return openGCS(a, opts)
	case schemeAzure:
		return openAzure(a, opts)
	}
	return openWeb(a, opts)
}
