// SPDX-License-Identifier: Apache-2.0

package surface

func imageRows() []Row {
	const credentials = "image.TestCredentials"
	return []Row{
		honoured("ListImagesRequest.filter", ""),
		honoured("StreamImagesRequest.filter", ""),
		honoured("ImageFilter.image", ""),
		honoured("ImageStatusRequest.image", ""),
		honoured("ImageStatusRequest.verbose", "the configuration of the image"),
		honoured("PullImageRequest.image", "", "test/e2e.TestImagesArePulledListedAndRemoved"),
		honoured("PullImageRequest.auth", "", "test/e2e.TestCredentialsOpenTheRegistryTheyAreFor", "imagestore.TestALayerIsNotFetchedFromHostsThatAManifestNames"),
		below(honoured("PullImageRequest.sandbox_config", "the rules of image.policy_file apply to the namespace in its metadata, and berth pulls and the timeline name the pod by the metadata; nothing else in it has an effect",
			"cri.TestThePodOfAPullIsKnownAndTheKubeletKnowsTheError", "test/e2e.TestAnImageThatIsNotAllowedIsNeitherFetchedNorRun")),
		honoured("PullSecurityProfileRequest.image", "a reference with a digest", "image.TestAProfileIsPulledOnce"),
		honoured("PullSecurityProfileRequest.auth", "as for images", "image.TestAProfileIsPulledOnce"),
		below(honoured("PullSecurityProfileRequest.sandbox_config", "as for images: the rules of image.policy_file apply to the namespace in its metadata", "image.TestAPolicyDecidesAboutAProfile")),
		honoured("PullSecurityProfileRequest.profile_kind", "Seccomp; another one is InvalidArgument", "cri.TestErrorsOfProfilesHaveTheirWords"),
		honoured("RemoveSecurityProfileRequest.digest", "one that is not kept is removed already", "image.TestAProfileIsPulledOnce"),
		honoured("RemoveImageRequest.image", "", "test/e2e.TestImagesArePulledListedAndRemoved"),

		honoured("ImageSpec.image", "an ID, the beginning of one, or a reference", "image.TestResolveAndRemove"),
		noEffect("ImageSpec.annotations", "berth knows images by their reference alone"),
		noEffect("ImageSpec.user_specified_image", "it is for people; image identifies the image"),
		honoured("ImageSpec.runtime_handler", "a handler that is not configured is InvalidArgument", "test/surface.TestAnImageIsForAHandlerThatThereIs"),
		noEffect("ImageSpec.image_ref", "it belongs to answers: the digest of a volume's image"),

		honoured("AuthConfig.username", "with password; before the other kinds", credentials),
		honoured("AuthConfig.password", "", credentials),
		honoured("AuthConfig.auth", "USER:PASSWORD in base64; after the other kinds", credentials),
		honoured("AuthConfig.server_address", "credentials for another registry than the image's are not used", credentials),
		honoured("AuthConfig.identity_token", "exchanged at the token server that the registry names", credentials, "imagestore.TestAnIdentityTokenIsExchanged"),
		honoured("AuthConfig.registry_token", "sent to the registry, and to no token server", credentials, "imagestore.TestARegistryTokenGoesToTheRegistryAlone"),
	}
}
