package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/skerry-io/skerry/cloud/internal/trust/join"
	"github.com/skerry-io/skerry/common/cli"
)

// tokenTimeout is how long kube-controller-manager may take to put a token into a Secret.
const tokenTimeout = 30 * time.Second

func kubeconfigCommand() *cobra.Command {
	var kubeconfig, server string
	c := &cobra.Command{
		Use: "kubeconfig ACCOUNT", Short: "Print a kubeconfig of cloudcore's own account, for a cloudcore on a machine of its own", Args: cli.Args(cobra.ExactArgs(1)),
		Long: `A cloudcore that runs outside of the cluster reaches kube-apiserver by kubeconfigs of the accounts that 'cloudcore install --rights-only' makes:
cloudcore, and cloudcore-approver for the certificates of devices. The token in it is that of the Secret ACCOUNT-kubeconfig in the namespace
skerry-system, which this makes; it does not end. Deleting the Secret takes it back.`,
		Example: `  cloudcore kubeconfig cloudcore > /etc/skerry/cloudcore.kubeconfig
  cloudcore kubeconfig cloudcore-approver > /etc/skerry/approver.kubeconfig
  cloudcore kubeconfig cloudcore --server https://10.0.0.10:6443`,
		RunE: func(c *cobra.Command, args []string) error {
			rules := clientcmd.NewDefaultClientConfigLoadingRules()
			rules.ExplicitPath = kubeconfig
			cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
			if err != nil {
				return cli.Badf("no way to kube-apiserver: %w; name an administrator's kubeconfig with --kubeconfig", err)
			}
			cfg.UserAgent, cfg.Timeout = "cloudcore", 30*time.Second
			client, err := kubernetes.NewForConfig(cfg)
			if err != nil {
				return fmt.Errorf("making the client: %w", err)
			}
			if server == "" {
				server = cfg.Host
			}
			raw, err := accountKubeconfig(c.Context(), client, server, args[0])
			if err != nil {
				return mend(err)
			}
			_, err = c.OutOrStdout().Write(raw)
			return err
		},
	}
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of an administrator (default: as kubectl finds it)")
	c.Flags().StringVar(&server, "server", "", "URL under which that machine reaches kube-apiserver (default: the one in the administrator's kubeconfig)")
	return c
}

// accountKubeconfig makes the Secret with the token of an account, and a kubeconfig with it.
func accountKubeconfig(ctx context.Context, client kubernetes.Interface, server, account string) ([]byte, error) {
	if _, err := client.CoreV1().ServiceAccounts(join.Namespace).Get(ctx, account, metav1.GetOptions{}); err != nil {
		return nil, fmt.Errorf("reading the account: %w", err)
	}
	secrets, name := client.CoreV1().Secrets(join.Namespace), account+"-kubeconfig"
	_, err := secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: account}}, Type: corev1.SecretTypeServiceAccountToken,
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("making the Secret of the token: %w", err)
	}
	var s *corev1.Secret
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, tokenTimeout, true, func(ctx context.Context) (bool, error) {
		var err error
		s, err = secrets.Get(ctx, name, metav1.GetOptions{})
		return err == nil && len(s.Data[corev1.ServiceAccountTokenKey]) > 0, err
	})
	switch {
	case wait.Interrupted(err):
		return nil, fmt.Errorf("the Secret %s/%s got no token within %v: does kube-controller-manager run?", join.Namespace, name, tokenTimeout)
	case err != nil:
		return nil, fmt.Errorf("reading the token: %w", err)
	case s.Type != corev1.SecretTypeServiceAccountToken || s.Annotations[corev1.ServiceAccountNameKey] != account:
		return nil, errors.New("the Secret " + join.Namespace + "/" + name + " is of another account or type: delete it")
	}
	c := clientcmdapi.NewConfig()
	c.Clusters["cluster"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: s.Data[corev1.ServiceAccountRootCAKey]}
	c.AuthInfos[account] = &clientcmdapi.AuthInfo{Token: string(s.Data[corev1.ServiceAccountTokenKey])}
	c.Contexts[account] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: account}
	c.CurrentContext = account
	raw, err := clientcmd.Write(*c)
	if err != nil {
		return nil, fmt.Errorf("encoding the kubeconfig: %w", err)
	}
	return raw, nil
}
