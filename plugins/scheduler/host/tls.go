package host

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os/exec"
	"strings"
	"time"

	plugin "github.com/hashicorp/go-plugin"

	"github.com/dflash-runner/dflash-runner/runner"
)

// clientVariable is where go-plugin hands the host's certificate over.
const clientVariable = "PLUGIN_CLIENT_CERT="

// pairVariable names the descriptor from which a script reads its own pair, once.
const pairVariable = "DFLASH_RUNNER_PAIR_FD="

// smallerKey gives the host a P-256 pair in place of the P-521 one that go-plugin
// made for mutual TLS: the TLS library in Python's gRPC refuses P-521 client
// certificates. It is called from RunnerFunc, when go-plugin has made its
// configuration and nothing has used it yet.
func smallerKey(c *plugin.ClientConfig, cmd *exec.Cmd) error {
	for i, entry := range cmd.Env {
		if !strings.HasPrefix(entry, clientVariable) {
			continue
		}
		pair, text, err := makePair()
		if err != nil {
			return runner.Errorf(runner.Internal, "make certificate: %w", err)
		}
		c.TLSConfig.Certificates = []tls.Certificate{pair}
		c.TLSConfig.MinVersion = tls.VersionTLS12
		c.TLSConfig.DynamicRecordSizingDisabled = true // small records are for strangers far away, and come again after every second of rest
		cmd.Env[i] = clientVariable + text
		return nil
	}
	return runner.Errorf(runner.Internal, "make certificate: go-plugin offers no mutual TLS")
}

// scriptPair makes a script's own pair, as Python's standard library makes none:
// its key and certificate as they are handed over, and all that the script may
// show for itself.
func scriptPair() (given []byte, shows *x509.CertPool, err error) {
	pair, text, err := makePair()
	if err != nil {
		return nil, nil, runner.Errorf(runner.Internal, "make certificate: %w", err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		return nil, nil, runner.Errorf(runner.Internal, "make certificate: %w", err)
	}
	shows = x509.NewCertPool()
	shows.AppendCertsFromPEM([]byte(text))
	return append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), text...), shows, nil
}

// shows refuses a script that announced another certificate than the one that
// was made for it, or none.
func shows(c *plugin.ClientConfig, made *x509.CertPool) error {
	if made == nil || made.Equal(c.TLSConfig.RootCAs) {
		return nil
	}
	return runner.Errorf(runner.Invalid, "start plugin: certificate: want the one that the host made for it, got another").
		WithHint("a Python plugin calls scheduler.serve, and nothing else, to meet its host")
}

// makePair makes a self-signed pair for this one connection, and its
// certificate as text.
func makePair() (pair tls.Certificate, text string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair, "", err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return pair, "", err
	}
	now := time.Now()
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "localhost", Organization: []string{"dflash-runner"}}, DNSNames: []string{"localhost"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(5, 0, 0), BasicConstraintsValid: true, IsCA: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		return pair, "", err
	}
	text = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, text, nil
}
