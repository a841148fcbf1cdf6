// Sends one record as fluent-bit's forward output would: with what an output's file says, over TLS and after the handshake of
// the shared key. Usage: sender OUTPUT.conf TAG MESSAGE
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/IBM/fluent-forward-go/fluent/client"
)

func main() {
	if err := send(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// The entries of the only section.
func entries(path string) (map[string]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	found := map[string]string{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if key, value, ok := strings.Cut(line, " "); ok && !strings.HasPrefix(line, "#") {
			found[strings.ToLower(key)] = strings.TrimSpace(value)
		}
	}
	return found, nil
}

func send(path, tag, message string) error {
	output, err := entries(path)
	if err != nil {
		return err
	}
	if output["name"] != "forward" || output["tls"] != "on" || output["tls.verify"] != "on" {
		return fmt.Errorf("this is no forward output over TLS: %v", output["name"])
	}
	ca, err := os.ReadFile(output["tls.ca_file"])
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	sender := client.New(client.ConnectionOptions{
		Factory: &client.ConnFactory{
			Network:   "tcp",
			Address:   output["host"] + ":" + output["port"],
			TLSConfig: &tls.Config{RootCAs: roots, ServerName: output["host"]},
		},
		ConnectionTimeout: 5 * time.Second,
		AuthInfo:          client.AuthInfo{SharedKey: []byte(output["shared_key"])},
	})
	sender.Hostname = output["self_hostname"]
	if err := sender.Connect(); err != nil {
		return err
	}
	defer sender.Disconnect()
	if err := sender.Handshake(); err != nil {
		return err
	}
	return sender.SendMessage(tag, map[string]string{"log": message})
}
