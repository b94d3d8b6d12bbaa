package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/pki"
)

// tokenFlags are those by which commands take a join token.
func tokenFlags(c *cobra.Command, token, file *string) {
	c.Flags().StringVar(token, "token", "", "join token, from 'cloudcore token create'; other users of this machine can see it (ps): prefer --token-file")
	c.Flags().StringVar(file, "token-file", "", "file that has the join token and nothing else; - is standard input")
}

// maxToken bounds the bytes read for a token.
const maxToken = 4096

// readToken takes the join token from the flag --token, or from the file (- for in) of
// --token-file.
func readToken(in io.Reader, token, file string) (pki.Token, error) {
	switch {
	case token == "" && file == "":
		return pki.Token{}, errors.New("--token-file is missing: 'cloudcore token create' prints a token")
	case token != "" && file != "":
		return pki.Token{}, errors.New("--token and --token-file are both given: give one of them")
	case file == "":
		return pki.ParseToken(token)
	case file != "-":
		f, err := os.Open(file)
		if err != nil {
			return pki.Token{}, fmt.Errorf("reading the token: %w", err)
		}
		defer f.Close()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, maxToken+1))
	if err != nil {
		return pki.Token{}, fmt.Errorf("reading the token: %w", err)
	}
	if len(raw) > maxToken {
		return pki.Token{}, fmt.Errorf("--token-file: not a join token: more than %d bytes", maxToken)
	}
	return pki.ParseToken(strings.TrimSpace(string(raw)))
}
