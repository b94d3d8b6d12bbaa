package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skerry-io/skerry/cloud/internal/trust/join"
	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/common/pki"
)

// admin is the cluster as the person at the keyboard may use it: --kubeconfig, else $KUBECONFIG and
// ~/.kube/config as kubectl reads them.
type admin struct{ kubeconfig string }

func (a *admin) addTo(c *cobra.Command) {
	c.PersistentFlags().StringVar(&a.kubeconfig, "kubeconfig", "", "kubeconfig of an administrator (default: as kubectl finds it)")
}

func (a *admin) client() (kubernetes.Interface, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, cli.Badf("no way to kube-apiserver: %w; name an administrator's kubeconfig with --kubeconfig", err)
	}
	cfg.UserAgent = "cloudcore"
	cfg.Timeout = 30 * time.Second
	cfg.QPS, cfg.Burst = 200, 200 // a revocation may have to remove thousands of certificate requests
	return kubernetes.NewForConfig(cfg)
}

func tokenCommand() *cobra.Command {
	var who admin
	c := &cobra.Command{
		Use: "token", Short: "Create, list and revoke the tokens that devices join with",
		Long: `A token lets devices join for a time and a number of uses. It pins cloudcore's CA, so that a device verifies cloudcore before it sends
the token. These commands need an administrator's rights; cloudcore itself can't make tokens.`,
	}
	who.addTo(c)
	c.AddCommand(tokenCreateCommand(&who), tokenListCommand(&who), tokenRevokeCommand(&who))
	return c
}

func tokenCreateCommand(who *admin) *cobra.Command {
	options := join.TokenOptions{TTL: join.DefaultTTL, Uses: join.DefaultUses}
	var output cli.Output
	c := &cobra.Command{
		Use: "create", Short: "Create a token and print it", Args: cli.Args(cobra.NoArgs),
		Example: `  cloudcore token create                              # one device, within a day
  cloudcore token create --node edge-17 --ttl 2h      # this device alone
  cloudcore token create --uses 40 --description "ferry fleet" -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := options.Validate(); err != nil {
				return cli.Bad(err)
			}
			client, err := who.client()
			if err != nil {
				return err
			}
			ca, err := join.LoadCA(c.Context(), client)
			if err != nil {
				return mend(err)
			}
			token, info, err := join.NewTokens(client).Create(c.Context(), ca.Pin(), options)
			if err != nil {
				return mend(err)
			}
			value := struct {
				Token string `json:"token"`
				join.TokenInfo
			}{token.String(), info}
			return output.Print(c.OutOrStdout(), value, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, token)
				return err
			})
		},
	}
	cli.DurationVar(c.Flags(), &options.TTL, "ttl", options.TTL, "how long it is valid")
	c.Flags().IntVar(&options.Uses, "uses", options.Uses, "how many devices may join with it")
	c.Flags().StringVar((*string)(&options.Node), "node", "", "the only node name that may join with it, also where the Node exists already and is not live")
	c.Flags().StringVar(&options.Description, "description", "", "free text, shown by list")
	output.AddTo(c)
	return c
}

func tokenListCommand(who *admin) *cobra.Command {
	var output cli.Output
	c := &cobra.Command{
		Use: "list", Short: "List the tokens, without their secrets", Args: cli.Args(cobra.NoArgs),
		Example: "  cloudcore token list",
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := who.client()
			if err != nil {
				return err
			}
			infos, err := join.NewTokens(client).List(c.Context())
			if err != nil {
				return mend(err)
			}
			if output == "json" {
				return writeJSON(c.OutOrStdout(), infos)
			}
			return writeTable(c.OutOrStdout(), infos, time.Now())
		},
	}
	output.AddTo(c)
	return c
}

func tokenRevokeCommand(who *admin) *cobra.Command {
	return &cobra.Command{
		Use: "revoke TOKEN|ID", Short: "Revoke a token; nodes that joined with it stay", Args: cli.Args(cobra.ExactArgs(1)),
		Example: "  cloudcore token revoke ID    # an ID of cloudcore token list",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := who.client()
			if err != nil {
				return err
			}
			if err := join.NewTokens(client).Revoke(c.Context(), args[0]); err != nil {
				return mend(err)
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), "revoked")
			return err
		},
	}
}

func nodeCommand() *cobra.Command {
	var who admin
	var output cli.Output
	c := &cobra.Command{Use: "node", Short: "Revoke a node that is stolen, lost or removed"}
	who.addTo(c)
	revoke := &cobra.Command{
		Use: "revoke NODE", Short: "Ban every certificate that a node has, end its link within a second, and delete the Node", Args: cli.Args(cobra.ExactArgs(1)),
		Example: "  cloudcore node revoke edge-17   # stolen; it may join again only with a new token",
		RunE: func(c *cobra.Command, args []string) error {
			node := types.NodeName(args[0])
			if err := pki.ValidNodeName(node); err != nil {
				return cli.Bad(err)
			}
			client, err := who.client()
			if err != nil {
				return err
			}
			done, err := join.Revoke(c.Context(), client, node)
			if err != nil {
				return mend(err)
			}
			err = output.Print(c.OutOrStdout(), done, func(w io.Writer) error {
				deleted := "deleted"
				if !done.NodeDeleted {
					deleted = "not there"
				}
				_, err := fmt.Fprintf(w, "certificates of %s from before %s are banned; the Node object: %s; certificate requests removed: %d\n",
					node, done.At.Format(time.RFC3339), deleted, done.RequestsDeleted)
				return err
			})
			if err == nil && !done.Known {
				err = fmt.Errorf("no device named %s has joined since it was last revoked, if ever: is the name right? `kubectl skerry status` lists the devices. It is banned all the same", node)
			}
			return err
		},
	}
	output.AddTo(revoke)
	c.AddCommand(revoke)
	return c
}

// mend adds a remedy to the errors that a newcomer meets.
func mend(err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w\nThis needs an administrator's kubeconfig: --kubeconfig FILE", err)
	case apierrors.IsNotFound(err) && errors.As(err, new(apierrors.APIStatus)):
		return fmt.Errorf("%w\nIs Skerry installed in this cluster? `cloudcore install --advertise NAME | kubectl apply -f -` installs it; NAME is where devices reach cloudcore", err)
	}
	return err
}
