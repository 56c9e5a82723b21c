package command

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// tokenVariable holds the token of a client. There is no flag for it: what is on
// a command line, everybody on the machine can read.
const tokenVariable = "BOWSTRING_TOKEN" //nolint:gosec // the name of one

// clientFlags say how a command comes in at a server.
type clientFlags struct {
	TokenFile  string `setting:"" client:"" type:"path" placeholder:"FILE" help:"File with the token for --server (default: the token in BOWSTRING_TOKEN)."`
	ServerCA   string `name:"server-ca" setting:"" client:"" type:"path" placeholder:"FILE" help:"Roots of the certificate of a --server grpc+tls://…, as PEM (default: the system's)."`
	ClientCert string `setting:"" client:"" type:"path" placeholder:"FILE" help:"Certificate to show to it, as PEM."`
	ClientKey  string `setting:"" client:"" type:"path" placeholder:"FILE" help:"Its private key, as PEM."`
	// PlaintextToken is for networks that encrypt by themselves.
	PlaintextToken bool `setting:"" client:"" help:"Send the token also to a --server grpc://… of another machine, unencrypted."`
}

// dialOptions are those of a connection to a server at addr (HOST:PORT).
func (f *clientFlags) dialOptions(token, addr string, encrypted bool) ([]grpc.DialOption, error) {
	var options []grpc.DialOption
	if encrypted {
		config, err := f.tls()
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	} else {
		if f.ClientCert != "" {
			return nil, usagef("--client-cert is for a --server grpc+tls://%s", addr)
		}
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	if token == "" {
		return options, nil
	}
	host, _, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); !encrypted && !f.PlaintextToken &&
		(err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback())) {
		return nil, usagef("a token would go to %s for everybody on the way to read: use --server grpc+tls://%s, or "+
			"say --plaintext-token", addr, addr)
	}
	return append(options, grpc.WithPerRPCCredentials(bearer(token))), nil
}

// token is what the server that the user has named is to know the caller by, if anything. Of a token in a file and one
// in the environment it is the one that is set closer to the command line. It belongs to the server that is named where
// it is, if one is, and is sent to no other.
func (a *App) token() (string, error) {
	f := &a.globals.clientFlags
	from := a.settings.origin("token-file")
	token, what := strings.TrimSpace(os.Getenv(tokenVariable)), tokenVariable
	switch {
	case f.TokenFile != "" && (token == "" || from.level >= fromEnv):
		var err error
		if token, err = readToken(f.TokenFile); err != nil {
			return "", err
		}
		what = "the token of " + f.TokenFile
	case token == "":
		return "", nil
	default:
		from = origin{fromEnv, tokenVariable}
	}
	owner := a.settings.serverAt(from.level)
	if owner == "" || sameServer(owner, a.globals.Server) {
		return token, nil
	}
	return "", usagef("%s belongs to %s, which is named beside it (%s), and is not sent to %s: give a token for that by "+
		"--token-file", what, owner, from, a.globals.Server)
}

// readToken reads the token of --token-file.
func readToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("--token-file: %s does not hold one token", path)
	}
	return token, nil
}

// serverAt is the server that is named at a level, "" if none is.
func (s *settings) serverAt(at level) string {
	switch at {
	case fromFlag:
		if flag := s.known["server"]; s.flags[flag] {
			server, _ := flag.Target.Interface().(string)
			return server
		}
	case fromEnv:
		if name, set := environment(s.known["server"]); set {
			return os.Getenv(name)
		}
	case fromFile:
		if node := s.file["server"]; node != nil {
			return node.Value
		}
	}
	return ""
}

// sameServer reports whether two addresses are of one server, reached in one way.
func sameServer(a, b string) bool {
	one, oneTLS, err := serverAddr(a)
	other, otherTLS, otherErr := serverAddr(b)
	return err == nil && otherErr == nil && oneTLS == otherTLS && strings.EqualFold(one, other)
}

// tls is whom to trust, and what to show.
func (f *clientFlags) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.ServerCA != "" {
		pem, err := os.ReadFile(f.ServerCA)
		if err != nil {
			return nil, fmt.Errorf("--server-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--server-ca: there is no certificate in %s", f.ServerCA)
		}
	}
	if (f.ClientCert == "") != (f.ClientKey == "") {
		return nil, usagef("--client-cert and --client-key belong together: give both, or neither")
	}
	if f.ClientCert != "" {
		pair, err := tls.LoadX509KeyPair(f.ClientCert, f.ClientKey)
		if err != nil {
			return nil, errors.Join(errors.New("--client-cert, --client-key"), err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// bearer is a token that goes with every call.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. dialOptions
// has looked where it goes.
func (bearer) RequireTransportSecurity() bool { return false }

// String keeps it out of what is printed.
func (bearer) String() string { return "a token" }
