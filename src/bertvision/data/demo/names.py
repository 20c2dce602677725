"""The words the demo set is made of, one store for each part; no two parts share a name.

The invented names are two word pieces long for an uncased BERT vocabulary, given names are one, so that a
person, a place or a thing called after a stem has two to four pieces and none is known to the encoder.
"""

from dataclasses import dataclass

__all__ = ["WORDS", "Words"]


@dataclass(frozen=True)
class Words:
    """What one part may use. Each field is one kind of word."""

    given: tuple[str, ...]
    surname: tuple[str, ...]
    place: tuple[str, ...]
    stem: tuple[str, ...]
    """What bridges, ships, laws and so on are called after."""
    body: tuple[str, ...]
    """Second word of an organisation; the first is a place."""
    material: tuple[str, ...]
    wood: tuple[str, ...]
    colour: tuple[str, ...]
    goods: tuple[str, ...]
    filling: tuple[str, ...]
    animal: tuple[str, ...]
    money: tuple[str, ...]
    """Currencies, in the plural."""

    def names(self) -> frozenset[str]:
        """Every word that makes up a name of a person, a place, an organisation or a thing."""
        return frozenset((*self.given, *self.surname, *self.place, *self.stem, *self.body))


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_TRAIN = Words(
    given=_split(
        """
        Anna Martin Clara Oscar Helen Victor Laura Felix Maria Hugo Alice Simon Rosa Peter Julia Arthur
        Emma Walter Nina Robert Sofia Daniel Ruth Conrad Elena Jonas Vera Stephen Ida Frank Marta Leon
        Judith Karl Sarah Otto Irene Paul Eva
        """
    ),
    surname=_split(
        """
        Melberg Dorson Prelov Trelis Trendis Kumard Puning Promen Colski Grerman Nilson Horane Starnard
        Trinin Wenick Torane Testane Sanson Tendard Mirnov Mornard Lavane Lostov Nisser Garing Flelis
        Bondick Genard Valard Foldley Parberg Kelane Wanane Hastell Wondley Runick Brandin Pelman Merman
        Dorner Pelick Levick Warane Suning Melert Worner Stining Caldman Camley Varven Porver Ledson
        Widell Solert Fonder Fledolt Birick Codell Gasker Nunley Barnman Terane Diskell Tranane Staster
        Ravick Delski Marvot Branov Valberg Larard Loster Tressman Brenstein Tessin Kalmer Maskov Medert
        Pressis Sulmer Dernis Stenis Cassard Waldman Pronot Proris Trever Hanard Korson Malmberg Conell
        Dilert Stanis Corell Flener Wanick Kulley Rimman Valson Bronen Dorick Taldis Cirane Tanick Palding
        Brarard Beving Dessberg Terolt Mading Renberg Mening Henstein Wurard Lirley Pornen Mustane Gindick
        Borard Lanane Luving Handert Lastson Tonick Vister Trenen Loskson Bilane Talmot Mostolt
        """
    ),
    place=_split(
        """
        Flurton Livwick Sonton Mistham Porstead Rossmouth Penham Costport Manton Trirton Granfield Bedwick
        Melfield Rondale Sassby Wonborough Trendborough Nessby Nesshaven Bulburg Warton Pedham Peststead
        Stelham Marstow Penholm Cladfield Gilport Panfield Calton Ramfield Boldton Foldwick Didham Lolton
        Perstead Sondham Dadholm Kanmouth Trerton Tranfield Golham Warstead Nanmouth Larstow Bralby
        Cassholm Lassdale Warnstow Kerton Dilstead Honmere Marborough Fardale Hidport Norhaven Wastham
        Mindstow Wonhaven Ganstead Senholm Novport Branport Momport Hidborough Ladton Humhaven Dilmere
        Berndale Moldwick Hermouth Dirwick Monburg Calport Conmere Tilmere Nadborough Pammouth Kindale
        Salham Lassby Fledport Lorford Stirmouth Conmouth Pornby Trandale Tonburg Mastford Brestmouth
        Marholm Palford Sadford Verburg Govhaven Pardale Hosthaven Rodborough Wildton Punmere Volport
        Torstead Granburg Bindport Romfield Hinddale Calburg Maskmere Dassfield Deskford
        """
    ),
    stem=_split(
        """
        Marenna Benossa Kissenna Wanossa Torvia Stirola Banenna Steldon Pundine Benora Sastine Brossor
        Kurane Nodond Wenuna Lorive Pendor Lanive Rastara Bossine Weruna Treline Rodola Gridola Condara
        Tranora Gelora Stemond Lanossa Bonola Fanossa Helmora Tilive Restond Feruna Parnus Bresta Sternus
        Duskara Besson Dreron Prosson Stilenna Traneth Mastossa Fanuna Handeth Waldine Riskor Doline
        Wornuna Treston Ganive Clarane Gelola Dessor Tomuna Moldane Stanane Taskara Darnus Gelmara
        Kernossa Deneth Samive Prelda Stilor Studenna Tinara Binora Helduna Volenna Lenive Noveth Sternara
        Melmara Prorva Modessa Dirvon Modane Vinive Kameth Cladossa Canond Castossa Norine Homossa Kenond
        Daduna Doruna Hessond Porara Barara Pastond Branine Missia Sarvor Cistus Nuvara Lemora Kunossa
        Dorine Pronia Goline Galane Goruna Renola Wemara Milmora Carond Porive Vanola Raldon Talmon Rurane
        Baldara Clarus Loneth Bronus Trildon Standane Guneth Podenna Devane Basson Widara Danond Lassia
        Branduna Lessossa
        """
    ),
    body=_split("Society Trust Bank Museum Guild Fund"),
    material=_split("granite brick iron sandstone copper wood"),
    wood=_split("oak maple walnut willow"),
    colour=_split("red green white orange brown"),
    goods=_split("clocks paper wool soap coal boots glass salt needles carpets"),
    filling=_split("almonds plums rhubarb cheese barley honey mushrooms leeks"),
    animal=_split("seals goats herons foxes hares owls"),
    money=_split("pounds crowns ducats"),
)

_DEV = Words(
    given=_split(
        """
        George Louise Henry Lydia Max Diana Oliver Grace Anton Flora Edward Teresa Samuel Nora Albert
        Hannah Isaac Margaret David Olga Thomas Bridget Joseph Agnes Philip Monica Ralph Catherine Erik
        Lucy Gustav Amelia Rudolf Esther Adam Beatrice Eugene Cecilia Ivan
        """
    ),
    surname=_split(
        """
        Flunard Bussley Randolt Maning Radman Volden Sindis Palden Sestis Dirick Messell Pening Vilder
        Gilane Dernick Pestell Nurell Pastov Wenell Kedman Honberg Rendberg Monane Studing Banley Soming
        Tranov Wonert Tondick Delming Vadberg Dudson Telder Venell Nurstein Cessing Graris Lonstein Drumot
        Ralden Farman Grindley Stelane Brerman Pornstein Runert Duster Cornson Penden Saning Kandman
        Venstein Belell Telard Trestson Kerard Florane Telane Hostert Rarane Cadolt Brestski Tivard
        Boldberg Gessing Sarvert Nalick Culane Stildley Fenley Fiving Forstein Winane Karard Hirell
        Grunder Sorick Prorot Cladski Horson Lolson Disser Domick Gramell Rovard Deldson Kodberg Kulane
        Kuvert Rossot
        """
    ),
    place=_split(
        """
        Sassham Hostdale Ginport Comton Conborough Momburg Ginfield Hadstead Nessburg Worton Dostford
        Donmouth Pumport Fastfield Vorford Hostfield Palmburg Dirdale Fussburg Kurton Kernborough Stelby
        Badham Hostton Panport Listhaven Kamholm Brossby Ridholm Dodham Humton Bandmere Honburg Costwick
        Penburg Dodholm Pondholm Rustport Ridton Ranborough Lammere Banford Tosshaven Sarholm Lurford
        Domton Simstead Tundale Kernham Deskburg Sundale Mistholm Panstead Grassport Hamfield Buddale
        Perdale Prenton Mossdale Baldby Codmere Hunton Parnburg Grinborough Darport Talham Kolton Kinmouth
        Bassburg Grimfield Lodham Kindport Kenholm Cerford Sirholm Derham Pordale Marport Tanford Harmere
        """
    ),
    stem=_split(
        """
        Panenna Tranine Homine Milora Hornenna Pelane Prideth Grinane Sindia Messeth Granine Revond Porine
        Nonenna Sendossa Merola Halossa Sulola Lesseth Branond Dovenna Telmine Nossor Solmara Davine
        Druria Forine Mossia Mastola Bronia Fuston Prodor Pornuna Warora Bredola Stenus Holessa Dorane
        Finive Mervus Postara Windine Flulma Traria Gaskia Tondon Classola Hervine Laluna Geldus Lessor
        Linossa Bralane Geldon Stirossa Ronora Flanda Benive Riskara Tonine Viskus Caldor Tenossa Melossa
        Godine Direnna Brorva Pevine Handenna Poldia Belmara Windon Bestola Minuna Cerane Sovine Castor
        Benine Funine Tanora Tristane Camessa Flosta Stirara Dareth Steron Soline Mustor Dalmine Bornossa
        """
    ),
    body=_split("Foundation College Union Academy Council Club"),
    material=_split("marble steel limestone concrete bronze rope"),
    wood=_split("cedar ash pine cherry"),
    colour=_split("blue black violet silver"),
    goods=_split("lamps linen ropes bicycles tea hats pianos sugar"),
    filling=_split("cherries hazelnuts lentils apples bacon ginger onions"),
    animal=_split("deer rabbits gulls ponies otters bats"),
    money=_split("guilders dollars marks"),
)

_TEST = Words(
    given=_split(
        """
        Rebecca Hans Charlotte William Edith Francis Tina Gilbert Veronica Leonard Ellen Viktor Frances
        Bernard Claudia Roland Miriam Edgar Sylvia Luis Dora Emil Carmen Harold Linda Jacob Elizabeth
        Greta Marcus Harriet Norman Valerie Alfred Susan Stefan Wendy Kurt Joanna Ernest
        """
    ),
    surname=_split(
        """
        Pindin Dandot Nondley Stulov Lossolt Wissing Bading Borley Punski Comolt Merick Prinson Senden
        Torvis Velder Lildley Kelmer Lerell Golane Bondane Walell Ginder Lulman Gemane Taning Sondot
        Warman Nonert Felberg Senane Trusten Golman Geldell Novson Gurman Hamane Prelson Binski Presser
        Tranman Hornane Clinen Stadert Ternot Karing Punstein Hindley Lanert Dalolt Domane Ternen Sanley
        Cisking Livert Kissis Tossick Renley Firning Dilman Fiding Serane Norstein Lorard Bisser Pelson
        Dessis Brorer Sendick Trider Cassley Velane Goldot Prolman Malder Norning Castot Midley Kinson
        Romberg Colley Prolane Badson Serell Tranding Woling Tramberg Kernley Walert Ralley Varberg
        """
    ),
    place=_split(
        """
        Solwick Merburg Pestton Govport Dessfield Kendham Pressburg Landholm Dalham Salborough Colwick
        Golton Ganburg Lilmouth Moldham Pinport Stamport Solport Fernport Menfield Ranmere Tarhaven
        Talwick Confield Nunholm Damstead Riskstow Wunton Trammouth Foldale Ganport Bindborough Kulham
        Gramburg Brandham Stirdale Vonburg Toldale Castwick Sarwick Bestfield Levport Carburg Norstead
        Filmholm Melmouth Rodmere Listby Pinstead Salmouth Danstead Melwick Wonport Mosston Nandale
        Cidmere Nordale Varham Holmere Cornport Vanmouth Wendham Dirholm Folddale Morborough Postborough
        Halport Galton Bredstead Ferton Stemborough Ladstow Brassford Holmhaven Suvmouth Tendale Poddale
        Tesshaven Dirport Godton
        """
    ),
    stem=_split(
        """
        Cluron Davenna Condora Ganeth Trelane Genessa Lenola Pressora Vossor Westond Fondon Fondara
        Tramine Tinine Vavine Bondive Moldossa Nanora Bissive Darane Fluria Vorane Deskia Gendon Wilond
        Damessa Destive Tastor Grinon Leruna Warossa Saldus Bruron Kanola Toldossa Fledane Mustus Fleron
        Govenna Kadenna Pastola Mostor Hostora Bravus Bandara Stelma Vestora Branossa Valdora Starond
        Telara Madenna Salora Meldia Manane Forvara Demora Vanuna Brassossa Fimora Comora Grasseth Panossa
        Telora Galdia Delane Panond Nedine Grosta Ganora Kesson Kenine Vindine Varane Bemond Stodon Raskia
        Vonive Rolane Pornine Walossa Nerine Lamenna Brorane Bornive Muruna Brunor Dernon Vandus Palmara
        """
    ),
    body=_split("Institute Association Chamber Gallery Ministry League"),
    material=_split("slate basalt timber cement flint aluminium"),
    wood=_split("spruce beech elm mahogany"),
    colour=_split("yellow grey purple gold"),
    goods=_split("candles cotton umbrellas pumps coffee bells gloves tobacco"),
    filling=_split("pears cabbage chestnuts lemons beans raisins pumpkin"),
    animal=_split("swans donkeys lizards wolves turtles geese"),
    money=_split("francs shillings florins"),
)

WORDS: dict[str, Words] = {"train": _TRAIN, "dev": _DEV, "test": _TEST}
