"""A file of weights at Keras's address."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memcfg.nn.loading._get_file import get_file

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["APPLICATIONS", "RemoteFile", "kernels", "models"]

APPLICATIONS = "https://storage.googleapis.com/tensorflow/keras-applications/"


class RemoteFile(NamedTuple):
    """A file of the network, and how Keras names it in the cache."""

    url: str
    file_hash: str | None = None  # SHA-256 or MD5; Keras has none of a few files
    name: str | None = None  # in the cache, by default that of the URL

    def fetched(
        self, who: str, instead: str = "pass the path of a file as weights, or None"
    ) -> str:
        """Return the path of the file, which is downloaded if it is not there."""
        try:
            return get_file(
                self.name, self.url, file_hash=self.file_hash, cache_subdir="models"
            )
        except OSError as error:
            raise OSError(
                f"{who}: {self.url} cannot be downloaded ({error}). Copy the file to "
                "the folder 'models' in ~/.keras, or in the environment's KERAS_HOME; "
                f"or {instead}"
            ) from error


def kernels(
    folder: str, stem: str, hashes: Sequence[str]
) -> tuple[RemoteFile, RemoteFile]:
    """Return the two files of a network, with the classifier and without."""
    start = f"{APPLICATIONS}{folder}/{stem}_weights_tf_dim_ordering_tf_kernels"
    return (
        RemoteFile(f"{start}.h5", hashes[0]),
        RemoteFile(f"{start}_notop.h5", hashes[1]),
    )


def models(
    folder: str, stem: str, hashes: Sequence[str]
) -> tuple[RemoteFile, RemoteFile]:
    """Return the two files of a newer network, which are named after the model."""
    return (
        RemoteFile(f"{folder}{stem}.h5", hashes[0]),
        RemoteFile(f"{folder}{stem}_notop.h5", hashes[1]),
    )
